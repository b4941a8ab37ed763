"""The state of a loader: complete, small, the same for every topology, and refused where it does not fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from streamsft.comm import LocalComm, ThreadComm
from streamsft.errors import StateError
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.types import Shard
from tests import laws
from tests.fakes import source
from tests.mixes import Mix

MIX = Mix()


def _loader(mix: Mix = MIX, **options: Any) -> Loader:
    return Loader(mix.packer(), **{"global_batch_size": 4, "background": False, **options})


def _state(steps: int = 3, **options: Any) -> dict[str, Any]:
    loader = _loader(**options)
    laws.first(loader, steps)
    return laws.as_json(loader.gather_state(LocalComm()))


@pytest.mark.parametrize("sources", [1, 20, 200])
def test_state_is_small_even_after_a_million_steps(sources: int) -> None:
    def loader() -> Loader:
        mix = Interleave(
            [source(f"corpus-{number:03d}.en", [4, 5, 6]) for number in range(sources)],
            [1 + 0.37 * number for number in range(sources)],
            seed=7,
        )
        return Loader(Packer(mix, 64), global_batch_size=8, background=False, tokenizer="0123456789abcdef" * 2)

    begun = loader()
    laws.first(begun, 3)
    laws.state_is_small_json(begun.state_dict(), sources)
    far = laws.as_json(begun.state_dict())
    far["step"] = 1_000_000
    far["lanes"]["0"] = [123_456, 70, *[[2**32 * sources, 3 * 10**8 // sources]] * sources]
    laws.state_is_small_json(far, sources)
    resumed = loader()
    resumed.load_state_dict(far)
    assert next(iter(resumed)).step == 1_000_001
    laws.state_is_small_json(resumed.state_dict(), sources)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(("lanes", "groups"), [(1, 1), (2, 1), (4, 3), (1, 3)])
def test_every_rank_gathers_the_state_of_one_process(ranks: int, lanes: int, groups: int) -> None:
    options = {"lanes_per_step": lanes, "lane_groups": groups}

    def run(comm: ThreadComm) -> Any:
        loader = _loader(dp=Shard(comm.rank, comm.size), **options)
        laws.first(loader, 5)
        return loader.gather_state(comm)

    assert all(state == _state(5, **options) for state in ThreadComm.run(ranks, run))


def test_local_state_of_several_lanes_is_not_complete() -> None:
    loader = _loader(dp=Shard(0, 2), lanes_per_step=2)
    laws.first(loader, 2)
    with pytest.raises(StateError, match="the state lacks lane 1 of 2: gather it with gather_state"):
        _loader(lanes_per_step=2).load_state_dict(loader.state_dict())


def test_lane_that_is_missing_is_refused_on_every_rank() -> None:
    state = _state(2, lanes_per_step=4)
    del state["lanes"]["2"]

    def run(comm: ThreadComm) -> str:
        with pytest.raises(StateError) as caught:
            _loader(dp=Shard(comm.rank, comm.size), lanes_per_step=4).load_state_dict(state)
        return str(caught.value)

    assert ThreadComm.run(2, run) == ["the state lacks lane 2 of 4: gather it with gather_state"] * 2


def test_lane_too_many_is_refused() -> None:
    state = _state(2)
    state["lanes"]["7"] = state["lanes"]["0"]
    with pytest.raises(StateError, match="has lane 7, but there are only 1"):
        _loader().load_state_dict(state)


def _raised_on_all_ranks(change: Any) -> list[str]:
    def run(comm: ThreadComm) -> str:
        loader = change(comm)
        with pytest.raises(StateError) as caught:
            loader.gather_state(comm)
        return str(caught.value)

    return ThreadComm.run(2, run)


def test_ranks_at_different_steps_are_told_apart_on_every_rank() -> None:
    def loader(comm: ThreadComm) -> Loader:
        found = _loader(dp=Shard(comm.rank, 2))
        laws.first(found, 2 + comm.rank)
        return found

    messages = _raised_on_all_ranks(loader)
    assert messages == ["rank 1 stands at step 3, rank 0 at 2"] * 2


def test_ranks_with_different_copies_of_a_lane_are_refused_on_every_rank() -> None:
    def loader(comm: ThreadComm) -> Loader:
        found = _loader(dp=Shard(comm.rank, 2))
        state = _state(3)
        state["lanes"]["0"][0] += comm.rank
        found.load_state_dict(state)
        return found

    assert _raised_on_all_ranks(loader) == ["rank 1 holds another copy of lane 0 than a rank before it"] * 2


def test_ranks_with_different_streams_are_refused_on_every_rank() -> None:
    messages = _raised_on_all_ranks(lambda comm: _loader(Mix(seed=comm.rank), dp=Shard(comm.rank, 2)))
    assert all("reads another stream" in message and "seed: " in message for message in messages)


def test_rank_in_the_middle_of_a_step_fails_all_ranks() -> None:
    def loader(comm: ThreadComm) -> Loader:
        found = _loader(dp=Shard(comm.rank, 2))
        next(found.micro_batches(1 if comm.rank else 2))
        return found

    messages = _raised_on_all_ranks(loader)
    assert all("in the middle of step 1" in message for message in messages)
    assert messages[0].startswith("rank 1: ")


def test_saving_right_after_loading_gives_the_same_state() -> None:
    state = _state()
    loader = _loader()
    assert loader.state_dict() == _state(0)
    loader.load_state_dict(state)
    assert loader.state_dict() == state


def test_state_loaded_after_iteration_began_is_refused() -> None:
    loader = _loader()
    iter(loader)
    with pytest.raises(StateError, match="after iteration began; load it into a fresh loader"):
        loader.load_state_dict(_state())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed: 0 in the state, 1 here"),
        ({"sequence_length": 13}, "sequence_length: 12 in the state, 13 here"),
        ({"lookahead": 0}, "lookahead: 7 in the state, 0 here"),
        ({"overflow": "drop"}, "overflow: 'truncate' in the state, 'drop' here"),
        ({"weights": (2.0, 1.0, 1.0)}, "mix.sources.s2.weight, .*: 0.1428571429 in the state, 0.25 here"),
        (
            {"lengths": ((2, 5, 9, 3), (2, 7, 1, 14, 30, 5), (2,))},
            "mix.sources.s1, by a digest .*: '[0-9a-f]+' in the state",
        ),
        (
            {"lengths": ((2, 5, 9, 3), (2, 7, 1, 14, 30, 4)), "weights": (2.0, 1.0)},
            "mix.sources.s2: in the state, not here",
        ),
    ],
)
def test_state_of_another_stream_is_refused_with_both_values(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match="the state belongs to another stream") as caught:
        _loader(Mix(**changes)).load_state_dict(_state())
    assert caught.match(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"tokenizer": "other"}, "tokenizer, by a digest of it: '' in the state, 'other' here"),
     ({"lanes_per_step": 2}, r"lane_groups: \[1, 1\] in the state, \[2, 1\] here")],
)  # fmt: skip
def test_state_of_another_loader_is_refused_with_both_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        _loader(**options).load_state_dict(_state())


@pytest.mark.parametrize(
    ("change", "message"),
    [({"version": 1}, "state of version 1; this streamsft reads version 3"), ({"version": None}, "state of version"),
     ({"step": -1}, "step is -1"), ({"step": True}, "step is True"), ({"step": "3"}, "step is '3'"),
     ({"lanes": None}, "lanes are None"), ({"lanes": {}}, "lacks lane 0"), ({"lanes": {"x": {}}}, "lacks lane 0"),
     ({"step": 1 << 63}, "step is 9223372036854775808"), ({"data_step": -1}, "step is -1"),
     ({"edits": [{"step": 1 << 63, "before": {}}]}, "edits are"), ({"edits": [{"before": {}, "x": 1}]}, "edits are"),
     ({"more": 1, "b": 2}, "state with 'more', 'b', unknown here"),
     ({"lanes": {"0": {}}}, "lane 0: not the state of a lane"), ({"fingerprint": None}, "another stream")],
)  # fmt: skip
def test_damaged_state_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        _loader().load_state_dict({**_state(), **change})


@pytest.mark.parametrize("value", [-1, 1 << 62, 1 << 63, 1 << 80, 1.0, True])
@pytest.mark.parametrize("at", [(0,), (1,), (2, 0), (2, 1), (-1, "steps", 0), (-1, "steps", 1)])
def test_a_number_in_a_lane_that_cannot_be_is_refused(at: tuple[Any, ...], value: Any) -> None:
    state = _state()
    lane = state["lanes"]["0"]
    lane.append({"steps": [0, 1]})
    *path, last = at
    for key in path:
        lane = lane[key]
    lane[last] = value
    with pytest.raises(StateError, match=rf"lane 0: holds {value}, which is no integer"):
        _loader().load_state_dict(state)


@pytest.mark.parametrize("state", [None, [], "{}", 3])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(StateError, match="not the state of a stream"):
        _loader().load_state_dict(state)


@pytest.mark.parametrize("field", ["step", "fingerprint", "lanes"])
def test_state_without_a_field_is_refused(field: str) -> None:
    with pytest.raises(StateError, match=f"state without {field}: it is incomplete"):
        _loader().load_state_dict({key: value for key, value in _state().items() if key != field})


@given(steps=st.integers(0, 5))
def test_refused_state_leaves_the_loader_as_it_was(steps: int) -> None:
    loader = _loader()
    with pytest.raises(StateError):
        loader.load_state_dict({**_state(steps), "lanes": {"0": {}}})
    assert laws.first(loader, 2) == laws.first(_loader(), 2)
