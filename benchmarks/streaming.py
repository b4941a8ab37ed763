"""How fast rows are tokenized while they are drawn, and how fast token files are streamed.

    python benchmarks/streaming.py [--json] [--quick]

Chats: worker processes of the loader read JSON Lines, render, mask, tokenize and pack, with the tokenizer of
benchmarks/tokenization.py. Beside them stands one `encode_batch` after the other on one core, of the texts of the same
rows, rendered before; once in one process, once in two at the same time. They take turns, each alone on the machine,
the encoding before and after the loader, and ratios are those of the median round. The loader tokenizes a lane's first
window at once, so its speed is taken from when the first lane opens its second window to when it opens a later one.
Windows are short, or the first ones would take minutes.

Tokens: the stores of benchmarks/loader.py, each as many Arrow files as there are lanes, as a `StreamingSource` and as
lists.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import loader
import peers
from corpus import conversations
from measuring import Contender, arguments, measure, report
from tokenization import tokenizer_of

import streamsft as ss

LANES = 32  # of a loader of steps of eight packs, by default
WORKERS = (1, 2)
ENCODED_AT_ONCE = 1000  # texts
WINDOW = 256  # rows


def write_chats(folder: Path, rows: int) -> list[str]:
    """Write chats, each one to another of as many files as there are lanes; return the first of the rows, as JSON."""
    folder.mkdir()
    lines = list(islice(conversations(), rows))
    for lane in range(LANES):
        (folder / f"chats-{lane}.jsonl").write_text("".join(lines[lane::LANES]))
    return lines


def encode_alone(tokenizer: Any, texts: list[str], processes: int) -> float:
    """Tokens per second of `encode_batch` in some processes at the same time, one core each, summed."""
    context = multiprocessing.get_context("fork")  # the loader's workers start like this
    start, speeds = context.Barrier(processes), context.SimpleQueue()

    def encode() -> None:
        backend, tokens = tokenizer.backend_tokenizer, 0
        backend.encode_batch(texts[: len(texts) // 10], add_special_tokens=False)  # fills its cache of words
        start.wait()
        begun = time.perf_counter()
        for first in range(0, len(texts), ENCODED_AT_ONCE):
            encodings = backend.encode_batch(texts[first : first + ENCODED_AT_ONCE], add_special_tokens=False)
            tokens += sum(len(encoding.ids) for encoding in encodings)
        speeds.put(tokens / (time.perf_counter() - begun))

    running = [context.Process(target=encode) for _ in range(processes)]
    for process in running:
        process.start()
    total: float = sum(speeds.get() for _ in running)
    for process in running:
        process.join()
    return total


def stream_chats(chat: ss.ChatTokenizer, folder: Path, workers: int, lookahead: int, windows: int) -> float:
    """Tokens per second that `workers` workers make of chats, over `windows` windows of each lane."""
    source = ss.StreamingSource(folder, name="chats", transform=chat, format="messages")
    packer = ss.Packer(source, loader.SEQUENCE_LENGTH, lookahead=lookahead)
    batches = iter(ss.Loader(packer, global_batch_size=loader.PACKS, workers=workers))
    tokens, begun = 0, 0.0
    for batch in batches:
        lane = batch.lanes.get(0)
        opened = 0 if lane is None else lane.window + (lane.emitted > 0)
        if not begun and opened >= 2:  # the first window stands for the start of the workers
            tokens, begun = 0, time.perf_counter()
        elif opened >= 2 + windows:
            break
        tokens += int(batch.documents.table.length.sum())
    seconds = time.perf_counter() - begun
    batches.close()  # type: ignore[attr-defined]
    return tokens / seconds


def measure_chats(folder: Path, *, quick: bool) -> dict[str, list[float]]:
    """Tokens per second in each round, by contender."""
    rows, lookahead, windows, rounds = (128, 2, 1, 1) if quick else (40_000, WINDOW, 1, 5)
    tokenizer = ss.load_tokenizer(tokenizer_of(folder.parent, quick=quick))
    chat = ss.ChatTokenizer(tokenizer)
    lines = write_chats(folder, rows)[:5_000]
    texts = [chat.render(ss.Conversation(json.loads(line)["messages"])).text for line in lines]
    speeds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for number in WORKERS:
            before = encode_alone(tokenizer, texts, number)
            speed = stream_chats(chat, folder, number, lookahead, windows)
            after = encode_alone(tokenizer, texts, number)
            speeds.setdefault(f"encode_batch, {number}", []).append((before + after) / 2)
            speeds.setdefault(f"streamsft, {number}", []).append(speed)
    return speeds


def stream_tokens(stores: list[Path], background: bool) -> Iterator[ss.Batch]:
    """This library, from token files."""
    sources = [ss.StreamingSource(sorted(store.glob("*.arrow")), name=store.name) for store in stores]
    packer = ss.Packer(ss.Interleave(sources, loader.WEIGHTS, seed=loader.SEED), loader.SEQUENCE_LENGTH)
    return iter(ss.Loader(packer, global_batch_size=loader.PACKS, background=background))


def measure_tokens(folder: Path, *, quick: bool) -> list[Contender]:
    """Batches per second from token files."""
    tokens, seconds, rounds = (200_000, 0.1, 1) if quick else (80_000_000, 2.0, 5)
    stores = []
    for seed, (name, middle) in enumerate(loader.MEDIANS.items()):
        loader.write_store(folder / "whole" / name, tokens // len(loader.MEDIANS), middle, seed)
        rows = datasets.load_from_disk(str(folder / "whole" / name)).select_columns(["input_ids", "loss_mask"])
        rows.save_to_disk(str(folder / name), num_shards=LANES)
        stores.append(folder / name)
    theirs = {"sequence_length": loader.SEQUENCE_LENGTH, "packs": loader.PACKS, "seed": loader.SEED}

    def tokens_of_batch(batch: ss.Batch) -> int:
        return int((batch.document_ids > 0).sum())

    def tokens_of_tensors(tensors: Any) -> int:
        return int((tensors[3] > 0).sum())

    measured = [
        Contender("streamsft, no thread", partial(stream_tokens, stores, False), tokens_of_batch),
        Contender("streamsft, background thread", partial(stream_tokens, stores, True), tokens_of_batch),
        Contender("lists", partial(peers.list_building, stores, loader.WEIGHTS, **theirs), tokens_of_tensors),
    ]
    measure(measured, seconds=seconds, rounds=rounds, warm_up=2 if quick else 40, slots=loader.SLOTS)
    return measured


def main() -> int:
    """Measure, and print the figures."""
    options = arguments("Measure streaming.").parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a process
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as name:
        chats = measure_chats(Path(name) / "chats", quick=options.quick)
        tokens = measure_tokens(Path(name), quick=options.quick)
    rounds = list(zip(*chats.values(), strict=True))
    plain, threaded, lists = tokens
    figures = {
        "ratio_vs_encode_batch": median(one / alone for alone, one, _, _ in rounds),
        "scaling_vs_bare": median((two / one) / (two_alone / alone) for alone, one, two_alone, two in rounds),
        "pretokenized_vs_list": max(plain.rate, threaded.rate) / lists.rate,
    }
    rows = [[f"chats: {contender}", f"{median(speeds) / 1e6:.3f}"] for contender, speeds in chats.items()]
    rows += [[f"tokens: {c.name}", f"{c.rate * loader.SLOTS * c.fill / 1e6:.2f}"] for c in tokens]
    report("Streams, 8 x 4096", ["contender", "M tokens/s"], rows, figures, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
