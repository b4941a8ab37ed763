"""What the store tests run in processes of their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from streamsft.sources.store import TokenStore


def build(path: Path, rows: int = 300, die_after: int | None = None) -> TokenStore:
    """Write the same `rows` rows each time; with `die_after` the process kills itself after so many."""
    with TokenStore.writer(path, files=["a.jsonl"]) as writer:
        for first in range(0, rows, 100):
            if die_after is not None and first >= die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            lengths = np.arange(first, min(first + 100, rows), dtype=np.int32) % 50
            ids = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths.tolist()])
            writer.append(ids, ids % 2 == 1, lengths, np.arange(first, first + len(lengths)))
            writer._flush()  # so that several batches are on the disk
        return writer.close(key="k", tokenizer="t")


def race(folder: Path, rounds: int, barrier: Any, failures: Any) -> None:
    """Build the same entries as seven others at the same moment."""
    try:
        for number in range(rounds):
            barrier.wait()
            store = build(folder / f"entry-{number}")
            assert len(store) == 300
            assert store[49].input_ids.tolist() == list(range(49))
    except BaseException as error:
        failures.put(repr(error))
        barrier.abort()
        raise


def watch(folder: Path, rounds: int, stop: Any, failures: Any) -> None:
    """Open every entry as soon as it is there, over and over: it must be complete."""
    try:
        while not stop.is_set():
            for number in range(rounds):
                if (folder / f"entry-{number}").exists():
                    store = TokenStore.open(folder / f"entry-{number}", verify=True)
                    assert len(store) == 300
                    assert store[299].input_ids.tolist() == list(range(49))
    except BaseException as error:
        failures.put(repr(error))
        raise


def build_and_die(path: Path) -> None:
    """Be killed in the middle of writing."""
    build(path, die_after=200)


def private_growth(path: Path, results: Any) -> None:
    """Report by how many bytes the process's own memory grows when a store is mapped and read all over."""
    store = TokenStore.open(path)  # the first use warms everything up
    store.read(np.arange(100))
    before = _private_bytes()
    store = TokenStore.open(path)
    rng = np.random.default_rng(0)
    for _ in range(3000):
        store.read(rng.integers(0, len(store), 100))
    results.put(_private_bytes() - before)


def _private_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def fill_the_disk(path: Path, limit: int, messages: Any) -> None:
    """Write under a limit on file size, which the system enforces as it does a full disk."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        build(path)
    except Exception as error:
        messages.put((type(error).__name__, str(error)))
        raise
