"""`InfiniteDataset` and `SourceStream`: cuts, passes, parts, states that do not fit, torch's loaders."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from streamsft.errors import ConfigError, EmptySourceError, StateError
from streamsft.stream.interleave import Interleave
from streamsft.stream.packer import Packer
from streamsft.stream.sourcestream import SourceStream
from streamsft.types import Sample, Shard
from tests import laws
from tests.fakes import ListSource, source
from tests.mixes import Mix


def _rows(stage: Any, count: int) -> list[int]:
    return [sample.row for sample in islice(stage, count)]


def _in_order(rows: int, shard: Shard | None = None) -> SourceStream:
    return SourceStream(source("s", [2] * rows), shuffle=False, shard=shard)


@pytest.mark.parametrize("shard", [Shard(), Shard(0, 4)])
@pytest.mark.parametrize("cut", range(25))
def test_position_is_what_was_given_out_not_a_block(cut: int, shard: Shard) -> None:
    stage = _in_order(24, shard)
    head = _rows(stage, cut)
    resumed = _in_order(24, shard)
    resumed.load_state_dict(laws.as_json(stage.state_dict()))
    wanted = [row * shard.count % 24 for row in range(30)]
    assert head + _rows(resumed, 30 - cut) == wanted


def test_second_resume_goes_on_from_the_first() -> None:
    stage = _in_order(12)
    assert _rows(stage, 5) == [0, 1, 2, 3, 4]
    second = _in_order(12)
    second.load_state_dict(stage.state_dict())
    assert second.state_dict() == stage.state_dict()
    assert _rows(second, 3) == [5, 6, 7]
    third = _in_order(12)
    third.load_state_dict(second.state_dict())
    assert _rows(third, 4) == [8, 9, 10, 11]


@pytest.mark.parametrize("cut", [5, 6, 7, 12, 13, 15])
def test_resume_keeps_the_pass_and_its_order(cut: int) -> None:
    def stage() -> SourceStream:
        return SourceStream(source("s", [2] * 6), seed=3)

    whole = [(sample.row, sample.pass_index) for sample in islice(stage(), 24)]
    passes = [[row for row, pass_index in whole if pass_index == number] for number in range(4)]
    assert all(sorted(rows) == list(range(6)) for rows in passes)
    assert len({tuple(rows) for rows in passes}) > 1
    begun = stage()
    head = [(sample.row, sample.pass_index) for sample in islice(begun, cut)]
    resumed = stage()
    resumed.load_state_dict(laws.as_json(begun.state_dict()))
    assert head + [(sample.row, sample.pass_index) for sample in islice(resumed, 24 - cut)] == whole


@given(rows=st.integers(1, 40), shards=st.integers(1, 8), seed=st.integers(0, 2**40))
def test_parts_share_each_pass_evenly(rows: int, shards: int, seed: int) -> None:
    data = source("s", [2] * rows)
    parts = [SourceStream(data, seed=seed, shard=Shard(index, shards)) for index in range(shards)]
    given_out = [list(islice(part, 3 * rows // shards + 1)) for part in parts]
    first_pass = [[sample.row for sample in found if sample.pass_index == 0] for found in given_out]
    assert sorted(row for part in first_pass for row in part) == list(range(rows))
    assert max(map(len, first_pass)) - min(map(len, first_pass)) <= 1


def test_rows_are_shuffled_before_they_are_divided() -> None:
    data = source("s", range(1, 101))
    parts = [list(islice(SourceStream(data, seed=1, shard=Shard(rank, 4)), 50)) for rank in range(4)]
    tokens = [sum(len(sample) for sample in part if sample.pass_index == 0) for part in parts]
    assert all(abs(count - 1262.5) < 0.25 * 1262.5 for count in tokens)
    passes = [{sample.row for sample in parts[0] if sample.pass_index == number} for number in range(2)]
    assert passes[0] != passes[1]


def test_three_rows_serve_eight_consumers() -> None:
    for index in range(8):
        assert len(_rows(SourceStream(source("s", [2, 2, 2]), shard=Shard(index, 8)), 10)) == 10


def test_source_with_nothing_to_train_on_is_refused_by_name() -> None:
    nothing = ListSource("silent", [([1, 2, 3], [1, 0, 0]), ([4], [1]), ([], [])])
    with pytest.raises(EmptySourceError, match=r"source 'silent' has no row .* 3 nothing_supervised"):
        SourceStream(nothing)
    with pytest.raises(EmptySourceError, match="source 'silent'"):
        next(iter(Interleave([source("s", [2]), nothing], [1, 1])))
    with pytest.raises(EmptySourceError, match="'none' has no row that could be drawn: it holds no row"):
        SourceStream(ListSource("none", []))


def test_iterating_again_goes_on_and_ends_the_iteration_before() -> None:
    stage = _in_order(9)
    old = iter(stage)
    assert next(old).row == 0
    assert _rows(stage, 2) == [1, 2]
    with pytest.raises(StateError, match="another iteration began"):
        next(old)
    assert _rows(stage, 2) == [3, 4]


@pytest.mark.parametrize("make", [lambda: _in_order(9), lambda: Mix().flat(), lambda: Mix().packer()])
def test_state_may_be_looked_at_before_one_is_loaded(make: Any) -> None:
    stage = make()
    list(islice(stage, 4))
    resumed = make()
    assert resumed.state_dict() == make().state_dict()
    resumed.load_state_dict(stage.state_dict())
    assert laws.first(resumed, 5) == laws.first(stage, 5)


@pytest.mark.parametrize("make", [lambda: _in_order(9), lambda: Mix().flat(), lambda: Mix().packer()])
def test_state_loaded_after_iteration_began_is_refused(make: Any) -> None:
    stage = make()
    iterator = iter(stage)
    with pytest.raises(StateError, match="after iteration began"):
        stage.load_state_dict(make().state_dict())
    assert next(iterator)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"seed": 2}, "seed: 1 in the state, 2 here"), ({"shuffle": False}, "shuffle: True in the state, False here"),
     ({"source": source("s", [2, 4])}, "mix.sources.s, by a digest of its contents: '.*' in the state, '.*' here"),
     ({"source": source("t", [2, 3])}, "mix.sources.t: here, not in the state")],
)  # fmt: skip
def test_state_of_another_stream_is_refused_with_both_values(changes: dict[str, Any], message: str) -> None:
    base: dict[str, Any] = {"source": source("s", [2, 3]), "seed": 1}
    state = SourceStream(**base).state_dict()
    with pytest.raises(StateError, match=message):
        SourceStream(**{**base, **changes}).load_state_dict(state)


def test_state_of_another_shard_is_refused_with_both() -> None:
    stage = _in_order(9, Shard(1, 2))
    stage.load_state_dict(_in_order(9, Shard(0, 3)).state_dict())
    with pytest.raises(StateError, match="state is of shard 0 of 3, this is shard 1 of 2"):
        next(iter(stage))


@pytest.mark.parametrize("drawn", [-1, 2.5, True, None, "3"])
def test_damaged_position_is_refused(drawn: Any) -> None:
    stage, state = _in_order(9), _in_order(9).state_dict()
    stage.load_state_dict({**state, "position": {"drawn": drawn}})
    with pytest.raises(StateError, match="not a number >= 0"):
        next(iter(stage))


def test_part_of_a_stream_is_not_mixed_or_packed() -> None:
    part = _in_order(9, Shard(0, 2))
    for make in (lambda: Interleave([part]), lambda: Packer(part, 8)):
        with pytest.raises(ConfigError, match=r"'s' has Shard\(index=0, count=2\)"):
            make()
    with pytest.raises(ConfigError, match="'mix' has Shard"):
        Packer(Interleave([source("s", [2])], shard=Shard(1, 2)), 8)


def _row(batch: list[Sample]) -> list[int]:
    return [sample.row for sample in batch]


def test_workers_of_a_torch_loader_divide_a_stage() -> None:
    loader = DataLoader(_in_order(20), batch_size=2, num_workers=2, collate_fn=_row, multiprocessing_context="fork")
    assert sorted(row for batch in islice(loader, 10) for row in batch) == list(range(20))


def test_stage_that_was_iterated_is_not_taken_over_by_several_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = _in_order(20)
    assert _rows(stage, 1) == [0]
    monkeypatch.setattr("streamsft.stream.faces.worker_shard", lambda shard: Shard(1, 2))
    with pytest.raises(StateError, match="give a DataLoader a fresh stage"):
        next(iter(stage))


@pytest.mark.filterwarnings("ignore:.*set_vital")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["source", "mix", "packer"])
def test_stateful_loader_of_torchdata_resumes_a_stage(kind: str, workers: int) -> None:
    def loader() -> StatefulDataLoader:
        stage = {"source": SourceStream(source("s", [2] * 9), seed=2), "mix": Mix().flat(), "packer": Mix().packer()}
        options: Mapping[str, Any] = {"multiprocessing_context": "fork", "prefetch_factor": 2} if workers else {}
        return StatefulDataLoader(stage[kind], batch_size=None, num_workers=workers, **options)

    whole = laws.first(loader(), 14)
    begun = loader()
    iterator = iter(begun)
    head = [laws.samples(next(iterator)) for _ in range(5)]
    state = begun.state_dict()
    del iterator
    resumed = loader()
    resumed.load_state_dict(state)
    assert head + laws.first(resumed, 9) == whole


def test_printed_it_says_what_it_is() -> None:
    assert str(SourceStream(source("s", [2] * 1234)).info) == "s  1,234 rows, a new order each pass"
    assert str(_in_order(3).info) == "s  3 rows, in the order of the input"
