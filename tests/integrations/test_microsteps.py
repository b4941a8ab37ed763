"""What was fetched ahead is no part of the state, and is handed out again."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from streamsft.comm import Comm, ThreadComm
from streamsft.errors import ConfigError, StateError
from streamsft.integrations.microsteps import MicroSteps, check_ranks, derived_accumulation, made_aggregator
from streamsft.metrics.aggregator import Aggregator
from streamsft.stream.loader import Loader
from streamsft.types import Shard
from tests.mixes import Mix

Rows = list[tuple[int, Any]]


def make(size: int | None = 3, **options: Any) -> MicroSteps:
    return MicroSteps(Loader(Mix().packer(), **{"global_batch_size": 4, "background": False, **options}), size)


def trained(steps: MicroSteps, count: int, ahead: int = 0) -> Rows:
    """The rows of the next `count` micro-batches, by a loop that fetches `ahead` more before it trains on one."""
    batches = iter(steps)
    fetched = list(islice(batches, ahead))
    rows = []
    for _ in range(count):
        fetched.append(next(batches))
        steps.consumed(fetched[0])
        rows.append((fetched[0].step, fetched.pop(0).rows))
    return rows


@settings(max_examples=12)
@given(
    size=st.integers(1, 5),
    ahead=st.integers(0, 6),
    legs=st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=4),
)
def test_any_cut_behind_a_step_goes_on_exactly(size: int, ahead: int, legs: list[tuple[int, bool]]) -> None:
    steps = make(size)
    whole = trained(make(size), sum(count for count, _ in legs) * steps.parts)
    found: Rows = []
    for count, fresh in legs:
        if fresh:
            state, steps = steps.state(), make(size)
            steps.load(state)
        found += trained(steps, count * steps.parts, ahead)
        steps.rest()
    assert found == whole


def test_the_state_is_that_of_the_loader_behind_the_step_trained_on() -> None:
    steps = make(3)
    trained(steps, 4, ahead=3)
    plain = make(3).loader
    list(islice(plain, 2))
    tokens = sum(int((batch.document_ids > 0).sum()) for batch in islice(make(3).loader, 2))
    assert steps.state() == {"loader": plain.state_dict(), "metrics": None, "tokens": tokens}
    assert steps.step == 2
    next(iter(only_one := make(3).loader))
    assert steps.state(finished=False)["loader"] == only_one.state_dict()


def test_in_the_middle_of_a_step_the_state_is_that_before_it_and_there_is_no_new_iteration() -> None:
    steps, plain = make(3), make(3).loader
    trained(steps, 3)
    next(iter(plain))
    assert steps.state()["loader"] == plain.state_dict()
    with pytest.raises(StateError, match="a multiple of 2 micro-batches"):
        iter(steps)


def test_batches_are_trained_on_in_turn() -> None:
    steps = make(4)
    first, second = islice(iter(steps), 2)
    with pytest.raises(StateError, match="step 2 is trained on out of turn"):
        steps.consumed(second)
    steps.consumed(first)


def test_an_iteration_ends_when_another_begins() -> None:
    steps = make(4)
    old = iter(steps)
    next(old)
    next(iter(steps))
    with pytest.raises(StateError, match="another iteration"):
        next(old)


def test_frameworks_find_nothing_to_save_or_measure() -> None:
    assert not hasattr(MicroSteps, "state_dict")
    assert not hasattr(MicroSteps, "load_state_dict")
    assert not hasattr(MicroSteps, "__len__")


def test_state_is_loaded_before_iterating() -> None:
    steps = make(4)
    trained(steps, 1)
    with pytest.raises(StateError, match="after iteration began"):
        steps.load(make(4).state())


def test_metrics_count_what_was_trained_on_and_travel_with_the_state() -> None:
    def metered() -> MicroSteps:
        loader = Loader(Mix().packer(), global_batch_size=4, background=False)
        return MicroSteps(loader, 3, metrics=Aggregator(loader.sources))

    whole, first, second = metered(), metered(), metered()
    trained(whole, 8)
    trained(first, 5, ahead=3)
    second.load(first.state())
    trained(second, 4)
    totals, legs = whole.record(), second.record()
    assert legs["data/packs"] == 16
    assert {key: value for key, value in legs.items() if "interval" not in key} == {
        key: value for key, value in totals.items() if "interval" not in key
    }
    assert make().record() == {}


def _on_ranks(comm: Comm) -> tuple[int, int, Any]:
    dp = Shard(comm.rank, comm.size)
    loader = Loader(Mix().packer(), global_batch_size=4, background=False, dp=dp, lanes_per_step=2)
    steps = MicroSteps(loader, 1, comm=comm)
    first = next(iter(steps))
    steps.consumed(first)
    total, own = steps.total_tokens(first), first.supervised_tokens
    trained(steps, 0) if steps.at_border else steps.consumed(next(_rest(steps)))
    return total, own, steps.state()


def _rest(steps: MicroSteps) -> Any:
    yield steps._queue[0]


def test_ranks_know_the_tokens_of_the_whole_step_and_share_one_state() -> None:
    packed = next(iter(Loader(Mix().packer(), global_batch_size=4, background=False, lanes_per_step=2)))
    tokens = packed.supervised_tokens
    for total, _, state in ThreadComm.run(4, _on_ranks):
        assert total == tokens
        assert state["loader"]["lanes"].keys() == {"0", "1"}
        assert state["loader"]["step"] == 1


def _on_twins(comm: Comm) -> tuple[int, float, int | None]:
    loader = Loader(Mix().packer(), global_batch_size=4, background=False, dp=Shard(comm.rank // 2, 2))
    steps = MicroSteps(loader, comm=comm)
    steps.consumed(first := next(iter(steps)))
    return steps.total_tokens(first), steps.scale(first), steps.trained_tokens()


def test_ranks_that_get_the_same_batches_count_once() -> None:
    packed = next(iter(Loader(Mix().packer(), global_batch_size=4, background=False)))
    tokens, trained = packed.supervised_tokens, int((packed.document_ids > 0).sum())
    assert ThreadComm.run(4, _on_twins) == [(tokens, 2 / tokens, trained)] * 4


def test_a_loader_of_other_ranks_is_refused() -> None:
    loader = make(dp=Shard(1, 2)).loader
    check_ranks(loader, 1, 2)
    check_ranks(loader, 3, 4, replicas=2)
    with pytest.raises(
        ConfigError, match=r"dp is Shard\(1, 2\), but this is data-parallel rank 0 of 1; give dp=Shard\(0, 1\)"
    ):
        check_ranks(loader, 0, 1)


def test_accumulation_is_derived_and_contradictions_are_refused() -> None:
    steps = make(3)
    assert [derived_accumulation("accumulate", asked, steps) for asked in (1, 2)] == [2, 2]
    with pytest.raises(
        ConfigError, match="accumulate is 4, but the 4 packs that a rank has of a step are 2 micro-batches"
    ):
        derived_accumulation("accumulate", 4, steps)
    with pytest.raises(ConfigError, match="give at least 1"):
        make(0)


def test_an_aggregator_is_made_if_none_is_given() -> None:
    loader = make().loader
    own = Aggregator(loader.sources)
    assert made_aggregator(loader, own, ThreadComm.run(1, lambda comm: comm)[0]) is own
    assert made_aggregator(loader, False, ThreadComm.run(1, lambda comm: comm)[0]) is None
    with pytest.raises(ConfigError, match="list is no Loader"):
        made_aggregator([], True, ThreadComm.run(1, lambda comm: comm)[0])  # type: ignore[arg-type]
