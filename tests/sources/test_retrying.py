"""Reads are tried again for as long as it may help, and no longer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from streamsft.errors import StoreError
from streamsft.sources import retrying
from streamsft.sources.retrying import retried


class Clock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def time(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = [times]

    def attempt() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "read"

    return attempt


def until(condition: Callable[[], bool]) -> bool:
    """Whether a condition holds within a minute."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


def test_what_passes_is_tried_again_with_growing_pauses() -> None:
    clock = Clock()
    assert retried(failing(6, OSError("reset")), "o", 60.0, clock=clock.time, pause=clock.pause) == "read"
    longest = [0.1 * 2**n for n in range(6)]
    assert all(top / 2 <= pause <= top for pause, top in zip(clock.pauses, longest, strict=True))


@pytest.mark.parametrize(
    ("deadline", "further"), [(120.0, "it is tried again for up to 120 s more"), (0.0, "this attempt is the last")]
)
def test_the_log_tells_of_what_takes_long_once(
    deadline: float, further: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow = retrying._SlowReads()
    monkeypatch.setattr(retrying, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(retrying, "_TELL_AGAIN_SECONDS", 600.0)
    monkeypatch.setattr(retrying, "_slow", slow)

    def attempt() -> str:
        assert until(lambda: not slow._reads)  # the watcher has seen that this read is a slow one
        return "read"

    for _ in range(2):
        assert retried(attempt, "s3://b/o", deadline) == "read"
        assert until(lambda: not slow._watched)  # and has said so, or not
    assert [record.getMessage() for record in caplog.records] == [f"s3://b/o: not read in 0 s; {further}"]


def test_one_thread_watches_all_reads_while_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "_TELL_SECONDS", 1.0)
    monkeypatch.setattr(retrying, "_slow", retrying._SlowReads())

    def watchers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "streamsft-waiting"}

    before, seen = watchers(), set[threading.Thread]()
    for _ in range(100):
        retried(lambda: retried(lambda: seen.update(watchers() - before), "inner", 1.0), "outer", 1.0)
    assert 1 <= len(seen) < 50  # of 200 reads
    for thread in seen:
        thread.join(60)
    assert not retrying._slow._watched
    assert not retrying._slow._reads


def test_without_a_thread_to_watch_it_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = retrying._SlowReads()
    monkeypatch.setattr(retrying, "_slow", slow)
    with monkeypatch.context() as patch:

        def none(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", none)
        assert retried(lambda: "read", "o", 1.0) == "read"
    assert not slow._reads
    assert not slow._watched
    assert retried(lambda: slow._watched, "o", 1.0), "a later one is watched again"


def test_pauses_differ() -> None:
    first, second = Clock(), Clock()
    for clock in (first, second):
        retried(failing(8, TimeoutError()), "o", 60.0, clock=clock.time, pause=clock.pause)
    assert first.pauses != second.pauses


def test_the_deadline_ends_it_with_the_name_and_the_reason() -> None:
    clock = Clock()
    with pytest.raises(
        StoreError, match=r"s3://b/o: could not be read in 3 s and \d+ attempts \(EOFError: 3 of 9 bytes"
    ):
        retried(failing(99, EOFError("3 of 9 bytes")), "s3://b/o", 3.0, clock=clock.time, pause=clock.pause)
    assert clock.now == pytest.approx(3.0)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("gone"),
        PermissionError("no"),
        KeyError("x"),
        OSError("AWS Error ACCESS_DENIED during HeadObject operation: no body"),
    ],
)
def test_what_stays_is_not_tried_again(error: Exception) -> None:
    clock = Clock()
    with pytest.raises(StoreError, match="o: cannot be read"):
        retried(failing(1, error), "o", 60.0, clock=clock.time, pause=clock.pause)
    assert not clock.pauses


def test_an_error_of_ours_goes_through() -> None:
    with pytest.raises(StoreError, match=r"^changed$"):
        retried(failing(1, StoreError("changed")), "o", 60.0)


def test_a_signature_is_not_told() -> None:
    with pytest.raises(StoreError) as raised:
        retried(failing(1, PermissionError("https://h/o?X-Signature=abc refused")), "o", 1.0)
    assert "abc" not in str(raised.value)
