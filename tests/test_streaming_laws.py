"""Each law for each endless stage over streaming sources, alone and mixed with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from streamsft.stream.loader import Loader
from streamsft.types import Shard
from tests import laws
from tests.passes import passes_behind
from tests.streams import STREAMED_STAGES, Shards, StreamedMix, streamed_mixes

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than cores

Make = Callable[[StreamedMix], Any]
stages = pytest.mark.parametrize("make", STREAMED_STAGES.values(), ids=STREAMED_STAGES.keys())


def _packs(stage: Any) -> bool:
    return hasattr(stage, "packer") or hasattr(stage, "packing")


@stages
@settings(max_examples=8)
@given(mix=streamed_mixes(), segments=st.lists(st.integers(0, 6), min_size=2, max_size=4))
def test_resumes_exactly(make: Make, mix: StreamedMix, segments: list[int]) -> None:
    laws.resumes_exactly(lambda: make(mix), 8, segments)


@stages
@settings(max_examples=4)
@given(mix=streamed_mixes(), steps=st.integers(1, 12))
def test_survives_pickling_with_its_position(make: Make, mix: StreamedMix, steps: int) -> None:
    laws.spawn_safe(lambda: make(mix), steps)


@stages
@settings(max_examples=10)
@given(mix=streamed_mixes(), steps=st.integers(1, 40))
def test_gives_each_document_once_per_pass_token_for_token(make: Make, mix: StreamedMix, steps: int) -> None:
    stage = make(mix)
    found = [seen for item in laws.first(stage, steps) for pack in item for seen in pack]
    complete = passes_behind(stage)
    rows = [part for part in mix.rows(_packs(stage)) if part.source.name in complete]
    laws.tokens_conserved(found, rows)
    laws.exactly_once(found, rows, complete)


def test_the_laws_are_held_to_several_whole_passes() -> None:
    for make in STREAMED_STAGES.values():
        stage = make(StreamedMix())
        laws.first(stage, 100)
        assert min(passes_behind(stage).values()) >= 2


@settings(max_examples=20)
@given(mix=streamed_mixes(), lanes=st.integers(2, 8), steps=st.integers(1, 40), kind=st.sampled_from("fms"))
def test_parts_of_a_stage_give_each_document_once_together(mix: StreamedMix, lanes: int, steps: int, kind: str) -> None:
    found, parts = [], []
    for index in range(lanes):
        shard = Shard(index, lanes)
        make = {"s": mix.stream, "m": lambda shard: mix.flat(shard=shard), "f": lambda shard: mix.packer(shard=shard)}
        stage = make[kind](shard)
        found += [seen for item in laws.first(stage, steps) for pack in item for seen in pack]
        parts.append(stage)
    complete = passes_behind(*parts)
    rows = [part for part in mix.rows(kind == "f") if part.source.name in complete]
    laws.tokens_conserved(found, rows)
    laws.exactly_once(found, rows, complete)


@settings(max_examples=15)
@given(mix=streamed_mixes(), data=st.data())
def test_loader_is_elastic(mix: StreamedMix, data: st.DataObject) -> None:
    """Any ranks that the lanes allow, after any other, and each row still once per pass."""
    lanes = data.draw(st.sampled_from([1, 2, 4, 6]), "lanes per step")
    batch = lanes * data.draw(st.sampled_from([1, 2]), "packs per lane")
    groups = data.draw(st.integers(1, 3), "lane groups")
    ranks = st.sampled_from([n for n in range(1, lanes + 1) if lanes % n == 0])
    leg = st.builds(laws.Leg, ranks, st.integers(1, 4), background=st.booleans())
    legs = data.draw(st.lists(leg, min_size=1, max_size=4), "legs")
    options = {"global_batch_size": batch, "lanes_per_step": lanes, "lane_groups": groups}

    def make(leg: laws.Leg, dp: Shard) -> Loader:
        return mix.loader(dp=dp, background=leg.background, **options)

    found = laws.elastic(make, legs)
    whole = mix.loader(**options)
    laws.first(whole, len(found))
    laws.exactly_once([seen for step in found for pack in step for seen in pack], mix.rows(), passes_behind(whole))


def test_run_over_processes_of_any_number_is_one_run() -> None:
    """Ranks × workers 1 × 0, 2 × 2, 1 × 4, 4 × 1, 2 × 0: each row exactly once in the passes that lie behind."""
    legs = [
        laws.Leg(1, 3), laws.Leg(2, 5, workers=2), laws.Leg(1, 6, workers=4), laws.Leg(4, 5, workers=1),
        laws.Leg(2, 41, background=True),
    ]  # fmt: skip
    mix = StreamedMix(overflow="split", seed=3)
    options: dict[str, Any] = {"global_batch_size": 8, "lanes_per_step": 4, "lane_groups": 4, "start_method": "fork"}

    def make(leg: laws.Leg, dp: Shard) -> Loader:
        return mix.loader(dp=dp, workers=leg.workers, background=leg.background, **options)

    found = laws.elastic(make, legs)
    whole = mix.loader(**options)
    laws.first(whole, len(found))
    seen = [document for step in found for pack in step for document in pack]
    laws.tokens_conserved(seen, mix.rows())
    laws.exactly_once(seen, mix.rows(), passes_behind(whole))
    assert min(passes_behind(whole).values()) >= 2


def test_spawned_workers_go_on_where_another_process_stopped() -> None:
    mix = StreamedMix(unit="tokens")
    whole = laws.first(mix.loader(), 12)
    head = mix.loader()
    assert laws.first(head, 5) == whole[:5]
    spawned = mix.loader(workers=2, start_method="spawn")
    spawned.load_state_dict(laws.as_json(head.state_dict()))
    assert laws.first(spawned, 7) == whole[5:]
    other = mix.loader()
    laws.first(other, 12)
    assert spawned.state_dict() == other.state_dict()


@settings(max_examples=20)
@given(data=st.data(), window=st.integers(1, 6), step=st.integers(1, 6))
def test_streaming_source_is_drawn_like_the_same_rows_by_index(data: st.DataObject, window: int, step: int) -> None:
    """Which source is drawn when depends on names and weights alone."""
    mix = data.draw(streamed_mixes().filter(lambda mix: mix.unit == "samples"))
    indexed = StreamedMix(
        seed=mix.seed,
        shards={name: Shards(lengths=shards.lengths, plain=True, refused=0, indexed=True)
                for name, shards in mix.by_name.items()},
        weights=mix.weights,
    )  # fmt: skip
    left, right = laws.first(mix.flat(window), 10 * step), laws.first(indexed.flat(window), 10 * step)
    assert [item[0][0].source for item in left] == [item[0][0].source for item in right]
