"""Batches on their way between processes: several in one bytes object, for a message costs more than its bytes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

__all__ = ["Buffers", "in_turn", "keep_memory", "packed", "portions", "unpacked", "widen"]

Buffers = Sequence[Any]
"""Objects whose bytes are sent one behind the other: bytes, and contiguous arrays."""

_MOST = 8  # batches in one message
_ALIGNMENT = 8  # bytes: what the arrays of a batch need
_PIPE_BYTES = 1 << 20  # the most that Linux grants anyone
_KEPT_BYTES = 1 << 24  # of messages whose memory is used again: most are a megabyte


def packed(sender: int, batches: Sequence[Buffers]) -> bytes:
    """Some batches as one bytes object, with the number of the worker that sends them."""
    sizes = [sum(memoryview(buffer).nbytes for buffer in batch) for batch in batches]
    parts: list[Any] = [np.array([sender, len(sizes), *sizes], np.int64)]
    for size, batch in zip(sizes, batches, strict=True):
        parts += [*batch, bytes(-size % _ALIGNMENT)]
    return b"".join(parts)


def unpacked(data: bytes) -> tuple[int, list[memoryview]]:
    """The sender and the batches of what `packed` made, as views."""
    sender, count = np.frombuffer(data, np.int64, 2).tolist()
    at, view, batches = 8 * (2 + count), memoryview(data), []
    for size in np.frombuffer(data, np.int64, count, 16).tolist():
        batches.append(view[at : at + size])
        at += size + -size % _ALIGNMENT
    return sender, batches


def portions(batches: Iterable[Buffers], sender: int, *, one_by_one: bool) -> Iterator[bytes]:
    """`batches` in portions that grow to eight, as the first is waited for; one by one if they take long to make."""
    portion: list[Buffers] = []
    enough = 1
    for batch in batches:
        portion.append(batch)
        if len(portion) == enough:
            yield packed(sender, portion)
            portion, enough = [], 1 if one_by_one else min(2 * enough, _MOST)
    if portion:
        yield packed(sender, portion)


def in_turn(messages: Iterator[bytes], senders: int) -> Iterator[memoryview]:
    """The batches of all senders, one of each in turn, beginning with sender 0."""
    waiting: list[deque[memoryview]] = [deque() for _ in range(senders)]
    turn = 0
    while True:
        while not waiting[turn]:
            message = next(messages, None)
            if message is None:
                return
            sender, batches = unpacked(message)
            waiting[sender].extend(batches)
        yield waiting[turn].popleft()
        turn = (turn + 1) % senders


def widen(loader_iterator: Any) -> None:
    """Let a whole message wait in the pipe from torch's workers, where the system can: its 64 KiB hold less than one.

    Whether it does changes nothing but speed.
    """
    reader = getattr(getattr(loader_iterator, "_worker_result_queue", None), "_reader", None)
    if reader is None or sys.platform != "linux":
        return
    import fcntl

    try:
        fcntl.fcntl(reader.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except PermissionError:  # the user's share of pipe memory is used up
        return


@cache
def keep_memory() -> None:
    """Once in a process, have the memory of messages that are let go used for the next ones.

    glibc maps a large block anew each time, at the cost of a page fault for every 4 KiB, until one of its size was let
    go: blocks up to the size of that come from the heap, which keeps up to twice as much (mallopt(3),
    M_MMAP_THRESHOLD). Elsewhere this does nothing: the pages of the block are never touched.
    """
    bytes(_KEPT_BYTES)
