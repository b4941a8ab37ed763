"""The table of every endless stage, and each law for each of them."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import streamsft
from streamsft.stream.faces import InfiniteDataset
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.sourcestream import SourceStream
from streamsft.types import Shard
from tests import laws
from tests.mixes import Mix, mixes
from tests.passes import passes_behind
from tests.streams import STREAMED_STAGES, StreamedMix

ROOT = Path(__file__).parents[1]
Make = Callable[[Mix], Any]


def _loader(mix: Mix, **options: Any) -> Loader:
    return Loader(mix.packer(), **{"global_batch_size": 2, "background": False, "pad_id": 7, **options})


TABLE: Mapping[str, Make] = {
    "source": lambda mix: SourceStream(mix.sources()[-1], seed=mix.seed),
    "source in order": lambda mix: SourceStream(mix.sources()[-1], seed=mix.seed, shuffle=False),
    "source by row groups": lambda mix: mix.grouped()[-1],
    "flat mix": lambda mix: mix.flat(),
    "nested mix": lambda mix: mix.nested(),
    "mix of token stores": lambda mix: mix.of_stores(),
    "packer": lambda mix: mix.packer(),
    "packer of a nested mix": lambda mix: mix.packer(nested=True),
    "packer of a source": lambda mix: Packer(
        SourceStream(mix.sources()[-1], seed=mix.seed, shuffle=False),
        mix.sequence_length,
        lookahead=20,
        overflow=mix.overflow,
    ),
    "loader by row groups": lambda mix: Loader(
        mix.packer_by_groups(), global_batch_size=2, lanes_per_step=2, lane_groups=2, background=False, pad_id=7
    ),
    "loader": _loader,
    "loader with a thread": lambda mix: _loader(mix, background=True),
    "loader of several lanes": lambda mix: _loader(mix, global_batch_size=6, lanes_per_step=2, lane_groups=3),
}
stages = pytest.mark.parametrize("make", TABLE.values(), ids=TABLE.keys())


def endless_stages(base: type = InfiniteDataset) -> Iterator[type]:
    for kind in base.__subclasses__():
        yield from endless_stages(kind)
        if not inspect.isabstract(kind) and kind.__module__.startswith("streamsft"):
            yield kind


def test_every_endless_stage_is_in_the_table() -> None:
    for module in pkgutil.walk_packages(streamsft.__path__, "streamsft."):
        if module.name.startswith(("streamsft.stream", "streamsft.sources")):
            importlib.import_module(module.name)
    tested = {type(make(Mix())) for make in TABLE.values()}
    tested |= {type(make(StreamedMix())) for make in STREAMED_STAGES.values()}
    assert {*endless_stages(), Loader} <= tested


@stages
@settings(max_examples=6)
@given(mix=mixes(), segments=st.lists(st.integers(0, 6), min_size=2, max_size=4))
def test_resumes_exactly(make: Make, mix: Mix, segments: list[int]) -> None:
    steps = 6 if isinstance(make(mix), Loader) else 10  # a step is several packs
    laws.resumes_exactly(lambda: make(mix), steps, segments)


@stages
@settings(max_examples=5)
@given(mix=mixes(), steps=st.integers(1, 12))
def test_survives_pickling_with_its_position(make: Make, mix: Mix, steps: int) -> None:
    laws.spawn_safe(lambda: make(mix), steps)


@stages
@settings(max_examples=5)
@given(mix=mixes(), steps=st.integers(0, 20))
def test_has_a_state_of_small_json(make: Make, mix: Mix, steps: int) -> None:
    stage = make(mix)
    laws.first(stage, steps)
    lanes = len(stage.state_dict().get("lanes", [0]))
    laws.state_is_small_json(stage.state_dict(), lanes * len(mix.lengths))


@stages
@settings(max_examples=8)
@given(mix=mixes(), steps=st.integers(1, 50))
def test_gives_each_document_once_per_pass_token_for_token(make: Make, mix: Mix, steps: int) -> None:
    stage = make(mix)
    found = [seen for item in laws.first(stage, steps) for pack in item for seen in pack]
    rows = [part for part in mix.rows(_packs(stage)) if part.source.name in {seen.source for seen in found}]
    laws.tokens_conserved(found, rows)
    laws.exactly_once(found, rows, passes_behind(stage))


@settings(max_examples=12)
@given(mix=mixes(), shards=st.integers(2, 5), steps=st.integers(1, 40), kind=st.sampled_from(["source", "mix", "pack"]))
def test_parts_of_a_stage_give_each_document_once_together(mix: Mix, shards: int, steps: int, kind: str) -> None:
    found, parts = [], []
    for index in range(shards):
        shard = Shard(index, shards)
        stage: Any = {
            "source": lambda shard=shard: SourceStream(mix.sources()[-1], seed=mix.seed, shard=shard),
            "mix": lambda shard=shard: Interleave(mix.sources(), mix.weights, seed=mix.seed, window=6, shard=shard),
            "pack": lambda shard=shard: Packer(
                mix.flat(), mix.sequence_length, lookahead=6, overflow=mix.overflow, shard=shard
            ),
        }[kind]()
        found += [seen for item in laws.first(stage, steps) for pack in item for seen in pack]
        parts.append(stage)
    rows = [part for part in mix.rows(kind == "pack") if part.source.name in {seen.source for seen in found}]
    laws.tokens_conserved(found, rows)
    laws.exactly_once(found, rows, passes_behind(*parts))


@settings(max_examples=10)
@given(mix=mixes(), data=st.data())
def test_loader_is_elastic(mix: Mix, data: st.DataObject) -> None:
    batch = data.draw(st.sampled_from([2, 4, 6, 12]), "global batch size")
    divisors = st.sampled_from([n for n in range(1, batch + 1) if batch % n == 0])
    lanes, groups = data.draw(divisors, "lanes per step"), data.draw(st.integers(1, 3), "lane groups")
    leg = st.builds(laws.Leg, divisors, st.integers(1, 4), background=st.booleans())
    legs = data.draw(st.lists(leg, min_size=1, max_size=4), "legs")

    def make(leg: laws.Leg, dp: Shard) -> Loader:
        return _loader(
            mix, global_batch_size=batch, dp=dp, background=leg.background, lanes_per_step=lanes, lane_groups=groups
        )

    laws.elastic(make, legs)


@settings(max_examples=10)
@given(mix=mixes(), batches=st.lists(st.integers(1, 9), min_size=2, max_size=4), steps=st.integers(1, 3))
def test_global_batch_size_may_change_at_a_cut_of_a_single_lane(mix: Mix, batches: list[int], steps: int) -> None:
    found, state = [], None
    for batch in batches:
        loader = _loader(mix, global_batch_size=batch)
        if state is not None:
            loader.load_state_dict(state)
        found += [pack for item in laws.first(loader, steps) for pack in item]
        state = laws.as_json(loader.state_dict())
    assert found == [pack for item in laws.first(_loader(mix, global_batch_size=1), len(found)) for pack in item]


def test_order_is_the_same_in_every_process() -> None:
    """Another process with another PYTHONHASHSEED has the same items and states."""
    script = "from tests.test_laws import print_digests; print_digests()"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    other = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert other.stdout.split() == list(_digests())


def test_source_of_any_kind_gives_the_same_stream() -> None:
    assert laws.first(Mix().of_stores(), 40) == laws.first(Mix().flat(), 40)


def _digests() -> Iterator[str]:
    for make in TABLE.values():
        yield laws.digest(lambda make=make: make(Mix(seed=5)), 25)
    for streamed in STREAMED_STAGES.values():
        yield laws.digest(lambda make=streamed: make(StreamedMix(seed=5)), 25)


def print_digests() -> None:
    """For the test above, in its other process."""
    print("\n".join(_digests()))


def _packs(stage: Any) -> bool:
    return isinstance(stage, Packer | Loader)
