"""Workers that hang: named, replaced, and their batches made again in order."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
from collections.abc import Callable
from itertools import islice
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamsft.errors import ConfigError, DataError
from streamsft.sources.lastread import LastRead
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.watch import HangError, Processes, Watch
from tests import laws
from tests.fakes import source
from tests.processes import context, start
from tests.stream.hanging import Hanging, HangingText, blocks, stops
from tests.training.runs import packs_by_step, run

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than cores

STEPS = 24
TIMEOUT = 1.0


def _loader(mix: Any, **options: Any) -> Loader:
    return Loader(
        Packer(mix, 8, lookahead=16), global_batch_size=4, **{"background": False, "timeout": TIMEOUT, **options}
    )


def _mix(read: Any) -> Interleave:
    return Interleave([read, source("fine", [5, 6, 3])], [3.0, 1.0], seed=3)


def _forks() -> set[BaseProcess]:
    """The children of this process that are forks of it; those of earlier tests may be among them."""
    return {child for child in active_children() if child.name.startswith("ForkProcess")}


@pytest.mark.parametrize(
    ("method", "hang", "workers"),
    [("fork", stops, 2), ("fork", blocks, 3), ("forkserver", stops, 1)],
)
def test_worker_that_hangs_is_named_and_replaced_and_the_audit_is_equal(
    method: str, hang: Callable[[Path], None], workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context()  # the server that workers are forked off has imported what they need
    before, flag = _forks(), tmp_path / "flag"
    hanging = Hanging("slow", flag, hang)
    watched = _loader(_mix(hanging), workers=workers, start_method=method)
    run(tmp_path / "watched", STEPS, loader=watched)
    assert not flag.exists()
    says = r"worker \d \(pid \d+\) read source 'slow' \(slow\.list, row \d+( and \d+ more rows?)?\), then"
    assert re.search(says, caplog.text), caplog.text
    run(tmp_path / "plain", STEPS, loader=_loader(_mix(hanging)))
    assert packs_by_step(tmp_path / "watched") == packs_by_step(tmp_path / "plain")
    assert not _forks() - before


def _leave_workers(method: str) -> None:
    """Print the ids of two workers, whose messages fill the pipe, and wait."""
    packer = Packer(source("s", range(2, 200)), 1 << 15, lookahead=0)
    batches = iter(Loader(packer, global_batch_size=4, workers=2, start_method=method))  # type: ignore[arg-type]
    next(batches)
    print(*[child.pid for child in active_children()], flush=True)
    signal.pause()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_leave_a_signal_to_the_process_they_work_for(number: signal.Signals) -> None:
    before, expected = _forks(), laws.first(_loader(source("s", [3, 4, 5])), 60)
    options: Any = {"workers": 2, "start_method": "fork", "prefetch": 1, "timeout": None}  # none would be replaced
    batches = iter(_loader(source("s", [3, 4, 5]), **options))
    found = [next(batches)]
    for worker in _forks() - before:
        assert worker.pid is not None
        os.kill(worker.pid, number)
    found += islice(batches, 59)
    assert laws.first(found, 60) == expected
    batches.close()  # type: ignore[attr-defined]
    assert not _forks() - before


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_end_with_the_process_they_work_for(method: str) -> None:
    working = start(_leave_workers, method)
    workers = [psutil.Process(int(pid)) for pid in working.readline().split()]
    assert len(workers) == 2
    os.kill(working.pid, signal.SIGKILL)
    left = psutil.wait_procs(workers, timeout=60)[1]
    for worker in left:
        worker.kill()
    assert working.end().returncode == -signal.SIGKILL
    assert not left


def test_worker_of_a_streaming_source_is_named_with_the_file_and_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in range(4):
        texts = ["hang" if (file, row) == (2, 3) else f"row {file}.{row}" for row in range(6)]
        (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    transform = HangingText(tmp_path / "flag", stops)
    corpus = StreamingSource(tmp_path / "*.jsonl", name="corpus", transform=transform, shuffle_window=4)
    options: Any = {"lanes_per_step": 1, "lane_groups": 2, "tokenizer": "characters"}
    found = laws.first(_loader(_mix(corpus), workers=2, start_method="fork", **options), STEPS)
    assert re.search(r"worker \d \(pid \d+\) read source 'corpus' \(\S*2\.jsonl, row \d", caplog.text), caplog.text
    assert found == laws.first(_loader(_mix(corpus), **options), STEPS)


def test_all_workers_stopped_from_outside_while_their_messages_fill_the_pipe(tmp_path: Path) -> None:
    before, packer = _forks(), Packer(source("s", range(2, 200)), 1 << 15, lookahead=0)
    plain = Loader(packer, global_batch_size=4, background=False)
    loader = Loader(packer, global_batch_size=4, workers=2, start_method="fork", timeout=TIMEOUT)
    batches, expected = iter(loader), iter(plain)
    for step in range(8):
        batch = next(batches)
        assert laws.samples(batch) == laws.samples(next(expected))
        if step == 1:
            for child in _forks() - before:
                assert child.pid is not None
                os.kill(child.pid, signal.SIGSTOP)
    assert loader.state_dict() == plain.state_dict()


def test_worker_that_hangs_on_one_row_again_and_again_ends_the_run_with_that_row(tmp_path: Path) -> None:
    before = _forks()
    loader = _loader(Hanging("slow", tmp_path / "flag", stops, always=True), workers=1, start_method="fork")
    says = r"worker 0 \(pid \d+\) read source 'slow' \(slow\.list, row \d.*; so did those that took its place, 3 times"
    with pytest.raises(DataError, match=says):
        laws.first(loader, 40)
    assert not _forks() - before


def _half_a_message(queue: Any) -> None:
    os.write(queue._writer.fileno(), struct.pack("!i", 100_000) + b"x" * 10)
    os.kill(os.getpid(), signal.SIGSTOP)


def test_reader_in_the_middle_of_a_message_is_released() -> None:
    processes, last_read = Processes("fork"), LastRead(["s"], 1)
    queue = processes.context.Queue()
    processes.context.Process(target=_half_a_message, args=(queue,), daemon=True).start()
    with Watch(0.2, processes, last_read) as watch, pytest.raises(HangError) as caught, watch.waiting(0):
        queue.get()
    assert caught.value.worker == 0


def test_waiting_ends_with_what_comes_where_nothing_hangs() -> None:
    processes, last_read = Processes("fork"), LastRead(["s"], 1)
    with Watch(None, processes, last_read) as watch, pytest.raises(KeyError, match="told"), watch.waiting(0):
        raise KeyError("told")


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
def test_timeout_that_is_no_time_is_refused(timeout: float) -> None:
    with pytest.raises(ConfigError, match=r"loader\.timeout: .* is not a number of seconds > 0"):
        _loader(_mix(source("s", [3, 4])), timeout=timeout)
