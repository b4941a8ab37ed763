"""The cache of decoded row groups: what is kept, what is fetched ahead, and what happens when fetching fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import StoreError
from streamsft.sources.blockrows import DecodedBlock
from streamsft.sources.groupcache import GroupCache
from streamsft.sources.groupfetch import Decode
from tests.forking import in_child

SIZE = 100 * 5 + 2 * 8


def block(group: int) -> DecodedBlock:
    return DecodedBlock(ids=np.full(100, group, np.int32), mask=np.ones(100, np.bool_), bounds=np.array([0, 100]))


class Fetches:
    """Counts what is fetched, and what is decoded; holds fetches back while `gate` is closed."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.done: list[int] = []
        self.decoded: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)
        self.failure: Callable[[int], BaseException | None] = lambda group: None

    def __call__(self, group: int) -> Decode:
        self.begun.append(group)
        self.arrived.release()
        assert self.gate.wait(60)
        if (error := self.failure(group)) is not None:
            raise error
        self.done.append(group)

        def decode() -> DecodedBlock:
            self.decoded.append(group)
            return block(group)

        return decode

    def cache(self, memory: int = 100 * SIZE, ahead: int = 0, threads: int = 4, deadline: float = 60.0) -> GroupCache:
        return GroupCache(self, lambda group: SIZE, memory=memory, ahead=ahead, threads=threads, deadline=deadline)


def settle(cache: GroupCache) -> None:
    """Have what is expected fetched, and wait until nothing is under way."""
    cache.get([])
    with cache._changed:
        assert cache._changed.wait_for(lambda: not cache._fetcher.flights, 60)


def numbers(blocks: list[DecodedBlock]) -> list[int]:
    return [int(found.ids[0]) for found in blocks]


def test_each_group_is_fetched_once_in_the_order_asked_for() -> None:
    fetches = Fetches()
    cache = fetches.cache()
    assert numbers(cache.get([3, 1, 2])) == [3, 1, 2]
    assert numbers(cache.get([2, 5, 3])) == [2, 5, 3]
    assert sorted(fetches.done) == [1, 2, 3, 5]
    assert cache.hits == 2


def test_groups_are_fetched_side_by_side() -> None:
    fetches = Fetches()
    fetches.gate.clear()
    cache = fetches.cache(threads=3)
    thread = threading.Thread(target=cache.get, args=([0, 1, 2],))
    thread.start()
    for _ in range(3):
        assert fetches.arrived.acquire(timeout=60)
    fetches.gate.set()
    thread.join(60)
    assert sorted(fetches.done) == [0, 1, 2]


def test_threads_that_ask_for_the_same_group_share_one_fetch() -> None:
    fetches = Fetches()
    fetches.gate.clear()
    cache = fetches.cache()
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.extend(numbers(cache.get([7])))) for _ in range(4)]
    for thread in threads:
        thread.start()
    fetches.gate.set()
    for thread in threads:
        thread.join(60)
    assert found == [7] * 4
    assert fetches.done == [7]


def test_memory_is_bounded_in_bytes_and_the_last_use_counts() -> None:
    fetches = Fetches()
    cache = fetches.cache(memory=3 * SIZE)
    for group in (0, 1, 2, 0, 3, 0, 1):
        cache.get([group])
    assert fetches.done == [0, 1, 2, 3, 1]
    assert cache._kept_bytes <= 3 * SIZE


def test_what_is_expected_is_fetched_ahead_up_to_a_depth_in_bytes() -> None:
    fetches = Fetches()
    cache = fetches.cache(ahead=4 * SIZE)
    cache.expect(0, ((group, 10 * group + 1) for group in count()))  # type: ignore[arg-type]
    settle(cache)
    assert sorted(fetches.done) == [0, 1, 2, 3]
    cache.get([0, 1])
    settle(cache)
    assert cache.seconds_waiting == 0
    assert cache.hits == 2


def test_what_was_fetched_ahead_puts_out_nothing_that_is_asked_for_with_it() -> None:
    fetches = Fetches()
    cache = fetches.cache(memory=3 * SIZE, ahead=2 * SIZE)
    cache.get([4, 5, 6])
    cache.expect(0, [(1, 1), (2, 1)])
    settle(cache)
    assert numbers(cache.get([1, 2, 4, 5, 6])) == [1, 2, 4, 5, 6]
    assert sorted(fetches.done) == [1, 2, 4, 5, 6]
    assert cache._kept_bytes <= 3 * SIZE


def test_what_is_still_to_be_read_stays_longest() -> None:
    fetches = Fetches()
    cache = fetches.cache(memory=3 * SIZE, ahead=SIZE)
    cache.get([0])
    cache.get([1, 2])
    cache.expect(0, [(0, 0)])
    cache.get([3])
    cache.get([0])
    assert sorted(fetches.done) == [0, 1, 2, 3]


def test_what_is_kept_and_read_again_soon_counts_as_fetched_ahead() -> None:
    fetches = Fetches()
    cache = fetches.cache(memory=2 * SIZE, ahead=2 * SIZE)
    cache.get([0, 1])
    cache.expect(0, [(2, 0), (3, 0), (0, 100), (1, 200), (4, 300)])
    cache.get([2, 3])  # 0 and 1 make room, and are not fetched again
    cache.expect(0, [(0, 0), (1, 0), (4, 100)])
    cache.get([0, 1])
    settle(cache)
    assert sorted(fetches.done) == [0, 1, 2, 3, 4]


def test_what_is_read_sooner_is_fetched_in_place_of_what_is_read_later() -> None:
    fetches = Fetches()
    cache = fetches.cache(memory=2 * SIZE, ahead=2 * SIZE)
    cache.get([0])
    cache.get([1])
    cache.expect(0, [(8, 100), (9, 200)])
    settle(cache)
    cache.expect(1, [(5, 10), (6, 20)])
    settle(cache)
    assert set(cache._early) == {5, 6}
    assert set(cache._kept) == {1, 8}  # which comes before 9, and 0 is not read again
    assert numbers(cache.get([5, 6])) == [5, 6]
    settle(cache)
    assert sorted(fetches.done) == [0, 1, 5, 6, 8, 9, 9]
    assert cache.hits == 2


def test_what_is_read_last_makes_room_for_what_is_read_before() -> None:
    fetches = Fetches()
    cache = fetches.cache(memory=2 * SIZE, ahead=SIZE)
    cache.get([0, 1])
    cache.expect(0, [(5, 1)])
    settle(cache)
    cache.expect(0, [(2, 0), (3, 0), (1, 100), (5, 200)])
    cache.get([2, 3])
    assert set(cache._kept) == {2, 3}
    assert set(cache._early) == {1}


def test_one_group_may_be_ahead_though_it_is_larger_than_the_depth() -> None:
    fetches = Fetches()
    cache = fetches.cache(memory=2 * SIZE, ahead=SIZE - 1)
    cache.get([0, 1])
    for reader, wanted in enumerate([(0, 50), (1, 60), (9, 1)]):
        cache.expect(reader, [wanted])
    settle(cache)
    assert set(cache._early) == {9}
    cache.get([5])  # 1 makes room, and is needed after 9
    assert set(cache._early) == {9}
    cache.get([9])
    settle(cache)
    assert sorted(fetches.done) == [0, 1, 1, 5, 9]  # there is room for 1 again


def test_what_is_asked_for_with_others_does_not_make_room_for_them() -> None:
    fetches = Fetches()
    cache = fetches.cache(memory=2 * SIZE, ahead=2 * SIZE)
    cache.get([0, 3])
    cache.expect(0, [(0, 0), (3, 0), (1, 1), (2, 2)])
    settle(cache)
    assert numbers(cache.get([1, 2])) == [1, 2]
    assert sorted(fetches.done) == [0, 1, 2, 3]


def test_what_nobody_waits_for_any_more_is_not_fetched() -> None:
    fetches = Fetches()
    raised = threading.Event()

    def fail(group: int) -> StoreError | None:
        if group == 0:
            return StoreError("no 0")
        assert raised.wait(60)
        return None

    fetches.failure = fail
    cache = fetches.cache(threads=1)
    with pytest.raises(StoreError, match="no 0"):
        cache.get(list(range(200)))
    raised.set()
    assert numbers(cache.get([500])) == [500]
    assert len(fetches.begun) <= 3  # the one that had been begun when the first failed comes


def test_who_waits_for_the_same_group_still_gets_it() -> None:
    fetches = Fetches()
    fetches.gate.clear()
    fetches.failure = lambda group: StoreError(f"no {group}") if group == 0 else None
    cache = fetches.cache(threads=1)
    raised: list[StoreError] = []
    found: list[int] = []

    def first() -> None:
        with pytest.raises(StoreError) as error:
            cache.get([0, 1, 2])
        raised.append(error.value)

    threads = [threading.Thread(target=first), threading.Thread(target=lambda: found.extend(numbers(cache.get([2]))))]
    threads[0].start()
    assert fetches.arrived.acquire(timeout=60)
    threads[1].start()
    with cache._changed:
        assert cache._changed.wait_for(lambda: 2 in cache._fetcher.flights, 60)
    while cache._fetcher.flights[2].waiting < 2:
        threads[1].join(0.01)
    fetches.gate.set()
    for thread in threads:
        thread.join(60)
    assert len(raised) == 1
    assert found == [2]


def test_the_deadline_is_one_for_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamsft.sources.groupcache._GRACE", 0.0)
    now, looked = [0.0], threading.Event()

    def monotonic() -> float:
        looked.set()
        return now[0]

    def half_a_second(group: int) -> None:
        assert looked.wait(60)  # who waits has looked at the clock since the last group
        looked.clear()
        now[0] += 0.5

    monkeypatch.setattr("streamsft.sources.groupcache.time", SimpleNamespace(monotonic=monotonic))
    fetches = Fetches()
    fetches.failure = half_a_second
    cache = fetches.cache(threads=1, deadline=1.0)
    assert len(cache.get(list(range(30)))) == 30
    assert now == [15.0]


def test_at_the_end_of_the_process_nothing_is_fetched_ahead() -> None:
    fetches = Fetches()
    cache = fetches.cache(ahead=9 * SIZE)
    cache.close(for_good=True)
    cache.expect(0, [(0, 0), (1, 1), (2, 2)])
    assert numbers(cache.get([0])) == [0]
    for thread in list(cache._fetcher.running):
        thread.join(60)
    assert fetches.begun == [0]


def test_what_comes_later_is_fetched_when_something_is_asked_for() -> None:
    fetches = Fetches()
    cache = fetches.cache(ahead=9 * SIZE, threads=2)
    fetches.gate.clear()
    cache.expect(0, [(0, 0), (10, 5), (11, 10)])
    cache.expect(1, [(1, 0), (20, 5), (21, 10)])
    for _ in range(2):
        assert fetches.arrived.acquire(timeout=60)
    assert set(fetches.begun) == {0, 1}
    fetches.gate.set()
    assert numbers(cache.get([0, 1])) == [0, 1]
    settle(cache)
    assert sorted(fetches.done) == [0, 1, 10, 11, 20, 21]


@settings(deadline=None)
@given(
    groups=st.lists(st.integers(0, 12), min_size=1, max_size=40),
    memory=st.integers(1, 6),
    ahead=st.integers(0, 6),
    told=st.integers(0, 8),
    threads=st.integers(1, 4),
    at_rest=st.booleans(),
)
def test_whatever_is_expected_the_right_groups_come_within_the_bounds(
    groups: list[int], memory: int, ahead: int, told: int, threads: int, at_rest: bool
) -> None:
    fetches = Fetches()
    cache = fetches.cache(memory=memory * SIZE, ahead=ahead * SIZE, threads=threads)
    for at, group in enumerate(groups):
        cache.expect(0, [(later, before) for before, later in enumerate(groups[at : at + told])])
        cache.expect(1, [(later, 2 * before) for before, later in enumerate(groups[at + 2 : at + told])])
        if at_rest:
            settle(cache)
        assert numbers(cache.get([group])) == [group]
        with cache._changed:
            assert cache._kept_bytes == len(cache._kept) * SIZE <= memory * SIZE
            assert cache._early_bytes == len(cache._early) * SIZE <= ahead * SIZE
            assert not cache._kept.keys() & cache._early.keys()
    cache.close()
    assert set(fetches.decoded) == set(groups)


def test_readers_share_the_depth_by_who_is_first_in_need() -> None:
    fetches = Fetches()
    cache = fetches.cache(ahead=4 * SIZE, threads=1)
    fetches.gate.clear()
    cache.expect(0, [(10, 100), (11, 200)])
    cache.get([])
    assert fetches.arrived.acquire(timeout=60)
    cache.expect(1, [(20, 1), (21, 150)])
    fetches.gate.set()
    settle(cache)
    assert fetches.done == [10, 20, 21, 11]


def test_what_is_no_longer_expected_makes_room() -> None:
    fetches = Fetches()
    cache = fetches.cache(ahead=2 * SIZE)
    cache.expect(0, [(1, 1), (2, 2)])
    settle(cache)
    cache.expect(0, [(3, 1), (4, 2)])
    settle(cache)
    assert sorted(fetches.done) == [1, 2, 3, 4]


def test_readers_that_are_gone_take_no_room_for_ever() -> None:
    fetches = Fetches()
    cache = fetches.cache(ahead=2 * SIZE)
    for reader in range(2, 5):
        cache.expect(reader, [(1000 + reader, 0), (2000 + reader, 1)])
    for group in range(400):
        cache.expect(0, [(group, 0), (group + 1, 5), (group + 2, 10)])
        cache.get([group])
    settle(cache)
    assert set(cache._early) == {400, 401}
    assert set(cache._readers._expected) == {0}


def test_an_error_is_raised_where_the_group_is_asked_for() -> None:
    fetches = Fetches()
    fetches.failure = lambda group: StoreError(f"no {group}") if group == 2 else None
    cache = fetches.cache(ahead=4 * SIZE)
    cache.expect(0, [(2, 1)])
    settle(cache)
    with pytest.raises(StoreError, match="no 2"):
        cache.get([1, 2])
    fetches.failure = lambda group: None
    assert numbers(cache.get([2])) == [2]


def test_waiting_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamsft.sources.groupcache._GRACE", 0.0)
    fetches = Fetches()
    fetches.gate.clear()
    cache = fetches.cache(deadline=0.05)
    with pytest.raises(StoreError, match="row group 4 did not come within"):
        cache.get([4])
    fetches.gate.set()


def test_a_fork_starts_anew() -> None:
    fetches = Fetches()
    cache = fetches.cache()
    cache.get([1])
    assert in_child(lambda: numbers(cache.get([1, 2])) == [1, 2] and sorted(fetches.done) == [1, 1, 2])


def test_a_fork_closes_without_the_lock_of_its_parent() -> None:
    cache = Fetches().cache()
    with cache._changed:  # as a thread of the parent may hold it
        assert in_child(lambda: cache.close() is None)


def test_after_closing_it_works_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamsft.sources.groupcache._LEAVE", 60.0)
    fetches = Fetches()
    cache = fetches.cache()
    cache.get([1])
    cache.close()
    assert not cache._fetcher.running
    assert numbers(cache.get([2])) == [2]


def test_too_little_memory_for_what_is_drawn_from_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    cache = Fetches().cache(memory=3 * SIZE, ahead=SIZE)
    cache.expect(0, [(0, 0), (1, 0)])
    assert not caplog.records
    cache.expect(1, [(2, 0), (3, 0)])
    cache.expect(1, [(2, 0), (3, 0)])
    assert [record.message for record in caplog.records if "raise io.memory" in record.message] == [
        f"the row groups that are drawn from take {4 * SIZE:,} bytes in this process, and io.memory is {3 * SIZE:,}: "
        "they are fetched more than once; raise io.memory, or lower shuffle_groups"
    ]
