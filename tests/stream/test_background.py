"""A thread that keeps the next items ready: order, errors, an end of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count, islice

import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import DataError
from streamsft.stream import background
from streamsft.stream.background import in_background


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "streamsft-loader"}


@settings(max_examples=20)
@given(items=st.lists(st.none() | st.integers(), max_size=20), depth=st.integers(1, 5))
def test_items_and_their_order_are_kept(items: list[int | None], depth: int) -> None:
    assert list(in_background(lambda: iter(items), depth)) == items


@pytest.mark.parametrize("taken", [1, 7])
def test_closing_stops_the_thread(taken: int) -> None:
    before = _threads()
    endless = in_background(count, 2)
    assert list(islice(endless, taken)) == list(range(taken))
    assert len(_threads() - before) == 1  # others, of earlier tests, may end meanwhile
    endless.close()  # type: ignore[attr-defined]
    assert not _threads() - before


def test_thread_that_hangs_is_left_behind_with_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "_LEAVE_S", 0.02)
    before, answered = _threads(), threading.Event()

    def items() -> Iterator[int]:
        yield 0
        answered.wait()  # as a read does of a file system that hangs
        yield 1

    stream = in_background(items, 2)
    assert next(stream) == 0
    stream.close()  # type: ignore[attr-defined]
    (left,) = _threads() - before
    assert "has not ended in 0.02 s" in caplog.text
    answered.set()
    left.join(60)


def test_no_thread_before_the_first_item() -> None:
    before = _threads()
    in_background(count, 2)
    assert not _threads() - before


def test_reads_at_most_the_depth_ahead() -> None:
    begun: list[int] = []
    blocked = threading.Event()

    def items() -> Iterator[int]:
        for number in range(100):
            begun.append(number)
            if number == 4:
                blocked.set()
            yield number

    stream = in_background(items, 3)
    assert next(stream) == 0
    assert blocked.wait(60)  # 0 was taken, 1 to 3 lie ready, 4 waits for room
    assert begun == [0, 1, 2, 3, 4]
    stream.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [DataError("x.jsonl:3"), KeyError("k"), KeyboardInterrupt()])
def test_error_comes_where_its_item_would_have(error: BaseException) -> None:
    def items() -> Iterator[int]:
        yield from (1, 2)
        raise error

    stream = in_background(items, 4)
    assert list(islice(stream, 2)) == [1, 2]
    with pytest.raises(type(error)) as caught:
        next(stream)
    assert caught.value is error


def test_error_of_the_start_is_raised() -> None:
    def fails() -> Iterator[int]:
        raise DataError("no such file")

    start: Callable[[], Iterator[int]] = fails
    with pytest.raises(DataError, match="no such file"):
        next(in_background(start, 1))
