"""`Packer`: cuts between packs, the overflow policies, windows."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from streamsft.errors import ConfigError, DataError, EmptySourceError
from streamsft.stream.interleave import Interleave
from streamsft.stream.packer import Packer
from streamsft.stream.sourcestream import SourceStream
from streamsft.types import Pack
from tests import laws
from tests.fakes import ListSource, source
from tests.mixes import Mix, mixes, random_lengths


def _in_order(lengths: list[int], slots: int, **options: Any) -> Packer:
    stream = SourceStream(source("s", lengths), shuffle=False)
    return Packer(stream, slots, **{"lookahead": len(lengths), **options})


def _packs(packer: Packer, count: int) -> list[Pack]:
    return list(islice(packer, count))


def _one_pass(packer: Packer) -> list[Pack]:
    """The packs of the first window, which holds each row once."""
    plan = packer.plan()
    return _packs(packer, plan.window(0, 0, plan.first_due(0), np.zeros(1, np.int64)).packs)


@pytest.mark.parametrize("lookahead", [0, 3, 6])
@pytest.mark.parametrize("cut", range(9))
def test_document_that_did_not_fit_is_not_lost_at_a_cut(cut: int, lookahead: int) -> None:
    def packer() -> Packer:
        return _in_order([6, 6, 3, 7, 2, 9], 10, lookahead=lookahead)

    begun = packer()
    head = laws.first(begun, cut)
    resumed = packer()
    resumed.load_state_dict(laws.as_json(begun.state_dict()))
    whole = laws.first(packer(), 9)
    assert head + laws.first(resumed, 9 - cut) == whole
    rows = [seen.row for item in whole for pack in item for seen in pack if seen.pass_index == 0]
    assert sorted(rows) == sorted(set(rows))


def test_every_row_of_a_window_is_in_one_of_its_packs() -> None:
    found = _one_pass(_in_order([6, 6, 3, 7, 2, 9], 10))
    assert sorted(row for pack in found for _, row, _ in pack.rows) == list(range(6))
    assert all(pack.tokens <= 10 for pack in found)
    assert len(found) == 4


def test_exact_fit_is_one_pack_equal_to_its_row() -> None:
    data = ListSource("s", [([10, 11], [1, 1])])
    (pack,) = _packs(Packer(data, 2, lookahead=1), 1)
    assert pack.samples[0].input_ids.tolist() == [10, 11]
    assert pack.samples[0].loss_mask.tolist() == [True, True]


def test_overlong_rows_are_dropped_and_counted() -> None:
    packer = _in_order([13, 11, 4], 10, overflow="drop")
    assert packer.mixture.leaves[0].dropped == {"too_long": 2}
    assert {row for pack in _packs(packer, 4) for _, row, _ in pack.rows} == {2}
    with pytest.raises(EmptySourceError, match=r"source 's' .* at sequence_length 10: 2 too_long"):
        _in_order([13, 11], 10, overflow="drop")


def test_overlong_rows_are_truncated() -> None:
    found = _one_pass(_in_order([13, 11], 10, overflow="truncate"))
    assert [pack.tokens for pack in found] == [10, 10]
    assert {tuple(pack.samples[0].input_ids.tolist()) for pack in found} == {
        (row, *range(1000, 1009)) for row in range(2)
    }


def test_overlong_rows_are_split_into_fragments_that_tile_them() -> None:
    found = _one_pass(_in_order([121], 60, overflow="split"))
    fragments = sorted((sample for pack in found for sample in pack.samples), key=lambda sample: sample.start)
    assert [(sample.start, len(sample)) for sample in fragments] == [(0, 60), (60, 60), (120, 1)]
    found = _one_pass(_in_order([122], 60, overflow="split"))
    fragments = sorted((sample for pack in found for sample in pack.samples), key=lambda sample: sample.start)
    assert [(sample.start, len(sample)) for sample in fragments] == [(0, 60), (60, 60), (120, 2)]
    assert [token for sample in fragments for token in sample.input_ids.tolist()] == [0, *range(1000, 1121)]
    assert {sample.row for sample in fragments} == {0}


def test_overlong_row_is_an_error_that_names_it() -> None:
    with pytest.raises(DataError, match=r"source 's', s\.list, row 1: 11 tokens do not fit a pack of 10 slots"):
        _in_order([9, 11], 10, overflow="error")
    assert len(_packs(_in_order([9, 10], 10, overflow="error"), 5)) == 5


@pytest.mark.parametrize("overflow", ["truncate", "drop", "split"])
@pytest.mark.parametrize("length", [0, 1, 2, 59, 60, 61, 119, 120, 121, 600])
def test_any_length_works_under_every_policy(length: int, overflow: Any) -> None:
    data = source("s", [2, length])
    rows = laws.Rows(data, 60, overflow)
    packer = Packer(SourceStream(data), 60, lookahead=8, overflow=overflow)
    found = [seen for item in laws.first(packer, 48) for pack in item for seen in pack]
    laws.tokens_conserved(found, [rows])
    wanted = {(seen.row, seen.start) for seen in rows.all}
    assert {(seen.row, seen.start) for seen in found} == wanted


def test_prompt_that_fills_the_pack_leaves_nothing_and_is_counted() -> None:
    """A prompt of 12 tokens and an answer of 3, beside a row that fits."""
    data = ListSource("s", [(range(15), [0] * 12 + [1] * 3), (range(9), [0] + [1] * 8)])
    assert Packer(data, 12).mixture.leaves[0].dropped == {"nothing_supervised": 1}
    assert Packer(data, 13).mixture.leaves[0].dropped == {}
    with pytest.raises(EmptySourceError, match="1 nothing_supervised"):
        Packer(ListSource("s", [(range(15), [0] * 12 + [1] * 3)]), 10)


def test_fragment_supervised_only_where_it_begins_is_kept() -> None:
    """Fragments tile what is supervised of their row, although the first token of a fragment has no label."""
    borders = [int(at % 4 == 0) for at in range(12)]
    data = ListSource("s", [(list(range(12)), borders), (list(range(12)), [0] * 8 + [1, 1, 1, 1]), ([1, 2], [0, 1])])
    packer = Packer(SourceStream(data), 4, lookahead=6, overflow="split")
    assert packer.mixture.leaves[0].dropped == {}
    found = [seen for item in laws.first(packer, 15) for pack in item for seen in pack]
    assert {(seen.row, seen.start) for seen in found} == {(0, 4), (0, 8), (1, 8), (2, 0)}
    truncated = Packer(SourceStream(data), 4, lookahead=6, overflow="truncate")
    assert truncated.mixture.leaves[0].dropped == {"nothing_supervised": 2}


@settings(max_examples=15)
@given(mix=mixes())
def test_documents_of_a_window_are_those_of_its_draws(mix: Mix) -> None:
    plan = mix.packer().plan()
    due, drawn = plan.first_due(0), np.zeros(len(plan.leaves), np.int64)
    for number in range(4):
        window = plan.window(0, number, due, drawn)
        firsts = window.documents.first.astype(bool)
        assert (
            np.bincount(window.documents.source[firsts], minlength=len(drawn)).tolist()
            == (window.drawn - drawn).tolist()
        )
        assert int(firsts.sum()) == plan.draws
        due, drawn = window.due, window.drawn


@pytest.mark.parametrize("lookahead", [0, 1024])
@pytest.mark.parametrize("spread", [0.4, 0.9])
def test_document_length_has_no_trend_over_the_packs_of_a_window(lookahead: int, spread: float) -> None:
    sources = [
        source(f"s{at}", random_lengths(at, 3000, median=median, spread=spread, longest=2000))
        for at, median in enumerate((40, 160, 500))
    ]
    plan = Packer(Interleave(sources, [1, 2, 1], seed=3), 1024, lookahead=lookahead).plan()
    due, drawn, windows, unmixed = plan.first_due(0), np.zeros(3, np.int64), [], []
    for number in range(40):
        window = plan.window(0, number, due, drawn)
        due, drawn = window.due, window.drawn
        packs: list[list[int]] = [[] for _ in range(window.packs)]
        for pack, length in zip(window.documents.pack.tolist(), window.documents.length.tolist(), strict=True):
            packs[pack].append(length)
        windows.append(packs)
        unmixed.append(sorted(packs, key=max, reverse=True))
    assert abs(laws.length_trend(windows)) < 3.5
    assert laws.length_trend(unmixed) < -20, "the test would not see a trend"


def test_documents_of_a_pack_are_not_sorted_by_length() -> None:
    packer = Packer(source("s", random_lengths(1, 400, median=30, longest=200)), 256, lookahead=200)
    several = [[len(sample) for sample in pack.samples] for pack in _packs(packer, 60) if len(pack.samples) > 2]
    assert sum(lengths == sorted(lengths, reverse=True) for lengths in several) < len(several) / 2


def test_real_lengths_fill_more_than_ninety_nine_percent() -> None:
    sources = [
        source(f"s{at}", random_lengths(at, 2000, median=median, longest=4000))
        for at, median in enumerate((60, 160, 400))
    ]
    packs = _packs(Packer(Interleave(sources, [1, 1, 1]), 2048, lookahead=1024), 300)
    assert sum(pack.tokens for pack in packs) / (len(packs) * 2048) > 0.99


def test_window_of_few_packs_is_said_with_the_fix(caplog: pytest.LogCaptureFixture) -> None:
    Packer(source("s", [8] * 64), 256, lookahead=100)
    assert "fills only about 3 packs of 256 slots" in caplog.text
    assert "raise packing.lookahead to 2048 or more" in caplog.text
    caplog.clear()
    Packer(source("s", [8] * 64), 256, lookahead=2048)
    Packer(source("s", [8] * 64), 256, lookahead=0)
    assert caplog.records == []


def test_a_source_by_itself_keeps_its_seed_and_order() -> None:
    stream = SourceStream(source("s", [2] * 6), seed=3, shuffle=False)
    rows = Counter(row for pack in _packs(Packer(stream, 2, lookahead=3), 3) for _, row, _ in pack.rows)
    assert rows == {0: 1, 1: 1, 2: 1}
    assert Packer(stream, 2).mix.seed == 3


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="sequence_length: 1"):
        Packer(source("s", [2]), 1)


def test_printed_it_is_the_tree_below_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    data = source("s", [20, 3], prompt=12)
    data.lengths[1], data.first_supervised[1] = 3, 3
    packer = Packer(Interleave([data, source("t", [4])], [1, 3], seed=2), 16)
    assert str(packer.info).splitlines() == [
        "packer  16 slots, best-fit over 1,024 draws, overflow: truncate",
        "└── mix  seed 2",
        "    ├── s   25.00%  1 rows, 1 nothing_supervised",
        "    └── t   75.00%  1 rows",
    ]
