"""Opening a store of tokens that others wrote, and reading batches of its rows in a plain DataLoader.

    python benchmarks/stores.py [--json] [--quick]

A hundred thousand rows of 256 tokens lie in a directory of `Dataset.save_to_disk`. Opening it for the first time checks
every row; the second time what was found is at hand. Beside it the same rows are made into a list of dicts, as
fine-tuning scripts hold them. Batches of 32 random rows are then read through `torch.utils.data.DataLoader` with 0 and
2 workers, and the same rows from `datasets` one by one, both made into tensors; with workers also batches that are
ready, which is the least that a loader with workers takes. Two workers are compared with `datasets` in this process
(`ratio_fetch_workers2`) and with `datasets` in two workers (`ratio_fetch_both_workers2`); `_limit` is what the ready
batches reach. A message from a worker costs more than its bytes: `ratio_fetch_workers2_portions` is of `Portions`, 16
batches in each. Last, four workers read 3,000 batches of a store of about a gigabyte.
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import numpy as np
import psutil
import pyarrow as pa
import torch
from measuring import arguments, report
from torch.utils.data import DataLoader

import streamsft as ss
from streamsft.sources.index import INDEX_FILE

TOKENS = 256
BATCH = 32
PORTION = 16  # batches in one message of a worker


def write(folder: Path, rows: int) -> Path:
    """`rows` random rows as a saved dataset."""
    random = np.random.default_rng(0)
    schema = datasets.Features(
        {"input_ids": datasets.List(datasets.Value("int32")), "loss_mask": datasets.List(datasets.Value("int8"))}
    )
    offsets = pa.array(np.arange(0, rows * TOKENS + 1, TOKENS, dtype=np.int32))
    ids = random.integers(0, 50_000, rows * TOKENS, np.int32)
    mask = (random.integers(0, 10, rows * TOKENS, np.int8) > 2).astype(np.int8)
    columns = [pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (ids, mask)]
    datasets.disable_progress_bars()
    datasets.Dataset(pa.table(columns, names=list(schema))).save_to_disk(folder)
    return folder


def seconds(work: Callable[[], Any]) -> float:
    """How long `work` takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def opening(folder: Path, tries: int) -> tuple[float, float, float]:
    """Seconds of the first and of a later opening, and of building the list of dicts, in turn; medians."""
    rounds = []
    for _ in range(tries):
        (folder / INDEX_FILE).unlink(missing_ok=True)
        first = seconds(lambda: ss.TokenStore.open(folder))
        later = seconds(lambda: ss.TokenStore.open(folder))
        rounds.append((first, later, seconds(lambda: list(datasets.load_from_disk(folder)))))
    first, later, listed = (median(column) for column in zip(*rounds, strict=True))
    return first, later, listed


def open_and_report(folder: Path, answer: Any) -> None:
    """In a process of its own: by how many bytes opening and validating raises the peak of resident memory."""
    ss.TokenStore.from_rows([{"input_ids": [1, 2], "loss_mask": [0, 1]}])  # import what opening imports
    before = _peak()
    ss.TokenStore.open(folder)
    answer.send(_peak() - before)


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def open_memory(folder: Path) -> int:
    """Peak resident memory of the first opening above that of an idle process, in bytes; mapped pages count too."""
    (folder / INDEX_FILE).unlink(missing_ok=True)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=open_and_report, args=(folder, theirs))
    process.start()
    growth = int(ours.recv())
    process.join()
    return growth


class RowWise:
    """A saved dataset that is asked for one row at a time."""

    def __init__(self, folder: Path) -> None:
        self.rows = datasets.load_from_disk(folder)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        row: dict[str, list[int]] = self.rows[index]
        return row


class Ready:
    """A dataset that has its one batch at hand."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.batch = np.zeros((BATCH, TOKENS), np.int32), np.zeros((BATCH, TOKENS), np.bool_)

    def __len__(self) -> int:
        return self.rows

    def __getitems__(self, indices: list[int]) -> Arrays | list[Arrays]:
        return self.batch if len(indices) == BATCH else [self.batch] * len(indices)


Arrays = tuple[np.ndarray, np.ndarray]  # type: ignore[type-arg]


def collate_samples(samples: list[ss.Sample]) -> Arrays:
    """Ids and masks as arrays [rows, tokens]."""
    ids, masks = [sample.input_ids for sample in samples], [sample.loss_mask for sample in samples]
    return np.concatenate(ids).reshape(-1, TOKENS), np.concatenate(masks).reshape(-1, TOKENS)


def collate_dicts(rows: list[dict[str, list[int]]]) -> Arrays:
    """Ids and masks as arrays [rows, tokens]."""
    ids, masks = ([row[name] for row in rows] for name in ("input_ids", "loss_mask"))
    return np.array(ids, np.int32), np.array(masks, np.bool_)


def as_it_is(batch: Arrays) -> Arrays:
    """The batch of `Ready`."""
    return batch


def tensors(samples: list[ss.Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and masks as tensors [rows, tokens]."""
    ids, mask = collate_samples(samples)
    return torch.from_numpy(ids), torch.from_numpy(mask)


def ready_tensors(batches: list[Arrays]) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of `Ready` as tensors."""
    ids, mask = batches[0]
    return torch.from_numpy(ids), torch.from_numpy(mask)


def batch_seconds(data: Any, collate: Any, workers: int, order: list[int], warm_up: int, method: str) -> float:
    """Seconds per batch, from when the workers run to when the last batch is here; ending them takes long."""
    started = {"num_workers": workers, "multiprocessing_context": method if workers else None}
    loader = DataLoader(data, BATCH, sampler=order, collate_fn=collate, **started)
    batches = iter(loader)
    for _ in range(warm_up):
        next(batches)
    begun, count = time.perf_counter(), len(loader) - warm_up
    for ids, mask in islice(batches, count):
        torch.from_numpy(ids), torch.from_numpy(mask)
    return (time.perf_counter() - begun) / count


def portion_seconds(data: Any, collate: Any, order: list[int], warm_up: int, method: str) -> float:
    """The same with two workers that send `PORTION` batches of tensors at a time."""
    portions = ss.Portions(BATCH, collate)
    started = {"num_workers": 2, "multiprocessing_context": method}
    batches = portions.batches(DataLoader(data, PORTION * BATCH, sampler=order, collate_fn=portions, **started))
    for _ in range(warm_up * PORTION):
        next(batches)
    begun, count = time.perf_counter(), len(order) // BATCH - warm_up * PORTION
    for ids, mask in islice(batches, count):
        assert ids.shape == mask.shape
    return (time.perf_counter() - begun) / count


Seconds = tuple[float, float, float]
"""Per batch: of the store, of `datasets`, and of batches that are ready."""


def fetching(store: ss.TokenStore, folder: Path, workers: int, order: list[int], tries: int, method: str) -> Seconds:
    """A batch in each message, in turn; medians."""

    def measured() -> Seconds:
        ours = batch_seconds(store, collate_samples, workers, order, 20, method)
        theirs = batch_seconds(RowWise(folder), collate_dicts, workers, order[: len(order) // 2], 10, method)
        return ours, theirs, batch_seconds(Ready(len(store)), as_it_is, workers, order, 20, method)

    return medians([measured() for _ in range(tries)])


def fetching_portions(store: ss.TokenStore, folder: Path, order: list[int], tries: int, method: str) -> Seconds:
    """Many batches in each message of two workers, `datasets` in this process, in turn; medians."""
    longer = order * PORTION

    def measured() -> Seconds:
        ours = portion_seconds(store, tensors, longer, 20, method)
        theirs = batch_seconds(RowWise(folder), collate_dicts, 0, order[: len(order) // 2], 10, method)
        return ours, theirs, portion_seconds(Ready(len(store)), ready_tensors, longer, 20, method)

    return medians([measured() for _ in range(tries)])


def medians(rounds: list[Seconds]) -> Seconds:
    """Of each figure its median."""
    ours, theirs, ready = (median(column) for column in zip(*rounds, strict=True))
    return ours, theirs, ready


def worker_growth(store: ss.TokenStore, workers: int, batches: int) -> tuple[float, float]:
    """By how many MB the unique memory (USS) of each worker grows at most, and of that what is not mapped files."""
    order = np.random.default_rng(1).integers(0, len(store), BATCH * batches).tolist()
    loader = DataLoader(store, BATCH, sampler=order, collate_fn=collate_samples, num_workers=workers)  # type: ignore[arg-type]
    running = iter(loader)
    for _ in range(batches // 10):
        next(running)
    processes = [psutil.Process(worker.pid) for worker in running._workers]  # type: ignore[attr-defined]
    before = list(map(_memory, processes))
    for _ in range(batches - batches // 10 - 8 * workers):  # to where the workers still run
        next(running)
    after = list(map(_memory, processes))
    grown = [[b - a for a, b in zip(*pair, strict=True)] for pair in zip(before, after, strict=True)]
    return max(own for own, _ in grown) / 1e6, max(held for _, held in grown) / 1e6


def _memory(process: psutil.Process) -> tuple[int, int]:
    """Unique memory, and what of the resident memory is not of mapped files, in bytes."""
    whole = process.memory_full_info()
    return whole.uss, whole.rss - whole.shared


def main() -> int:
    """Measure, and print the figures."""
    options = arguments("Measure opening token stores and reading them row by row.").parse_args()
    rows, large, tries, batches = (2_000, 4_000, 1, 40) if options.quick else (100_000, 800_000, 3, 3_000)
    method = "fork" if options.quick else "spawn"
    figures, table = {}, []
    with tempfile.TemporaryDirectory() as place:
        folder = write(Path(place) / "rows", rows)
        first, later, listed = opening(folder, tries)
        figures |= {"ratio_first_open": listed / first, "ratio_second_open": listed / later}
        figures["open_memory_mb"] = open_memory(folder) / 1e6
        table.append(["list of dicts", f"{listed:.2f} s"])
        table.append(["opened for the first time, every row checked", f"{first * 1e3:.0f} ms"])
        table.append(["opened again", f"{later * 1e3:.1f} ms"])
        store = ss.TokenStore.open(folder)
        order = np.random.default_rng(0).integers(0, rows, BATCH * min(batches, 600)).tolist()
        in_process = 0.0
        for workers in (0, 2):
            ours, theirs, ready = fetching(store, folder, workers, order, tries, method)
            in_process = in_process or theirs
            figures["ratio_fetch_workers2" if workers else "ratio_fetch"] = in_process / ours
            if workers:
                figures["ratio_fetch_workers2_limit"] = in_process / ready
                figures["ratio_fetch_both_workers2"] = theirs / ours
                figures["ratio_fetch_both_workers2_limit"] = theirs / ready
            times = f"{ours * 1e3:.2f} ms, datasets {theirs * 1e3:.2f} ms, ready made {ready * 1e3:.2f} ms"
            table.append([f"batch of {BATCH}, {workers} workers", times])
        ours, theirs, ready = fetching_portions(store, folder, order, tries, method)
        figures["ratio_fetch_workers2_portions"] = theirs / ours
        figures["ratio_fetch_workers2_portions_limit"] = theirs / ready
        times = f"{ours * 1e3:.2f} ms, datasets without workers {theirs * 1e3:.2f} ms, ready made {ready * 1e3:.2f} ms"
        table.append([f"the same in portions of {PORTION}", times])
        store = ss.TokenStore.open(write(Path(place) / "large", large))
        figures["pickle_bytes"] = float(len(pickle.dumps(store)))
        figures["worker_uss_growth_mb"], figures["worker_heap_growth_mb"] = worker_growth(store, 4, batches)
    report(f"{rows:,} rows of {TOKENS} tokens", ["", "time"], table, figures, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
