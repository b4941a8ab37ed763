"""The laws of endless stages hold over preference pairs, as over any rows: a pair is one row, and is never cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.sources.pairs import SideBySide
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.packing import Overflow
from streamsft.types import Shard
from tests import laws
from tests.fakes import ListSource
from tests.mixes import random_rows
from tests.pairs import PairSource
from tests.passes import passes_behind


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMix:
    """Two sources of pairs, of which one is side by side, and one of other rows; by sizes of prompts and answers."""

    seed: int = 0
    sizes: tuple[tuple[int, int, int], ...] = ((2, 3, 4), (4, 1, 1), (9, 9, 9))
    overflow: Overflow = "truncate"
    lookahead: int = 7
    shared: bool = True

    @property
    def sources(self) -> list[Any]:
        """The first pair of each source fits a pack; the first token tells the row."""
        rows = [
            ([row, *range(100, 99 + prompt)], [*range(200, 200 + chosen)], [*range(300, 300 + rejected)])
            for row, (prompt, chosen, rejected) in enumerate(((2, 1, 1), *self.sizes))
        ]
        pairs = [PairSource(name, rows) for name in ("p", "q")]
        return [pairs[0], pairs[1] if self.shared else SideBySide(pairs[1]), random_rows("text", self.seed, [2, 5, 11])]

    def rows(self) -> list[laws.Rows]:
        """What each source should give: of pairs those that fit, whole."""
        *pairs, text = self.sources
        expected = []
        for source in pairs:
            ids, masks = source.read(np.arange(len(source)))
            alike = ListSource(source.name, list(zip(ids, masks, strict=True)))
            expected.append(laws.Rows(alike, 16, "drop"))
        return [*expected, laws.Rows(text, 16, self.overflow)]

    def packer(self) -> Packer:
        mix = Interleave(self.sources, [2.0, 1.0, 1.0], seed=self.seed, window=5)
        return Packer(mix, 16, lookahead=self.lookahead, overflow=self.overflow)


def _loader(mix: PairMix, **options: Any) -> Loader:
    return Loader(mix.packer(), **{"global_batch_size": 2, "background": False, "pad_id": 7, **options})


STAGES: Mapping[str, Callable[[PairMix], Any]] = {
    "packer": lambda mix: mix.packer(),
    "loader": _loader,
    "loader of several lanes": lambda mix: _loader(mix, global_batch_size=6, lanes_per_step=2, lane_groups=3),
}
stages = pytest.mark.parametrize("make", STAGES.values(), ids=STAGES.keys())
size = st.integers(1, 9)


@st.composite
def pair_mixes(draw: st.DrawFn, *, shared: bool | None = None) -> PairMix:
    return PairMix(
        seed=draw(st.integers(0, 2**32)),
        sizes=tuple(draw(st.lists(st.tuples(st.integers(2, 9), size, size), max_size=6))),
        overflow=draw(st.sampled_from(["truncate", "drop", "split"])),
        lookahead=draw(st.sampled_from([0, 5, 16])),
        shared=draw(st.booleans()) if shared is None else shared,
    )


@stages
@settings(max_examples=4)
@given(mix=pair_mixes(shared=True), segments=st.lists(st.integers(0, 5), min_size=2, max_size=4))
def test_resumes_exactly(make: Callable[[PairMix], Any], mix: PairMix, segments: list[int]) -> None:
    laws.resumes_exactly(lambda: make(mix), 8, segments)


@settings(max_examples=4)
@given(mix=pair_mixes(shared=False))
def test_packs_of_pairs_side_by_side_resume_exactly(mix: PairMix) -> None:
    laws.resumes_exactly(mix.packer, 8, [3, 0, 2])


@stages
@settings(max_examples=8)
@given(mix=pair_mixes(shared=True), steps=st.integers(1, 30))
def test_gives_each_pair_once_per_pass_token_for_token(
    make: Callable[[PairMix], Any], mix: PairMix, steps: int
) -> None:
    stage = make(mix)
    found = [seen for item in laws.first(stage, steps) for pack in item for seen in pack]
    rows = [part for part in mix.rows() if part.source.name in {seen.source for seen in found}]
    laws.tokens_conserved(found, rows)
    laws.exactly_once(found, rows, passes_behind(stage))


@settings(max_examples=8)
@given(mix=pair_mixes(shared=False), steps=st.integers(1, 30))
def test_packs_have_each_pair_side_by_side_once_per_pass(mix: PairMix, steps: int) -> None:
    stage = mix.packer()
    found = [seen for item in laws.first(stage, steps) for pack in item for seen in pack]
    rows = [part for part in mix.rows() if part.source.name in {seen.source for seen in found}]
    laws.tokens_conserved(found, rows)
    laws.exactly_once(found, rows, passes_behind(stage))


@settings(max_examples=6)
@given(mix=pair_mixes(shared=True), data=st.data())
def test_loader_is_elastic(mix: PairMix, data: st.DataObject) -> None:
    divisors = st.sampled_from([1, 2, 4])
    leg = st.builds(laws.Leg, divisors, st.integers(1, 3), background=st.booleans())
    legs = data.draw(st.lists(leg, min_size=1, max_size=3), "legs")

    def make(leg: laws.Leg, dp: Shard) -> Loader:
        return _loader(mix, global_batch_size=4, dp=dp, background=leg.background)

    laws.elastic(make, legs)


def test_survives_pickling_and_has_a_state_of_small_json() -> None:
    for make in STAGES.values():
        laws.spawn_safe(lambda make=make: make(PairMix(shared=False) if make is STAGES["packer"] else PairMix()), 5)
        stage = make(PairMix())
        laws.first(stage, 7)
        laws.state_is_small_json(stage.state_dict(), 3 * len(stage.state_dict().get("lanes", [0])))
