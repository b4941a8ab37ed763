"""Documents that take multiples of some slots: what is behind their tokens is theirs, unsupervised, and planned."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError, StateError
from streamsft.stream.collate import Batch
from streamsft.stream.evaluation import EvalLoader
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.packing import Packing
from streamsft.stream.skipping import advance
from streamsft.types import Shard
from tests.fakes import ListSource
from tests.laws import Rows
from tests.mixes import Mix, mixes

PAD = 77


def packer(mix: Mix, align: int) -> Packer:
    limit = -(-mix.sequence_length // align) * align
    return Packer(mix.flat(), limit, lookahead=mix.lookahead, overflow=mix.overflow, align=align)


def loader(mix: Mix, align: int, **options: Any) -> Loader:
    return Loader(packer(mix, align), **{"global_batch_size": 4, "background": False, "pad_id": PAD, **options})


def check(batch: Batch, mix: Mix, align: int) -> None:
    """Each document begins at a multiple of `align` with its row's tokens, and is alone up to the next multiple."""
    slots, table = batch.input_ids.shape[1], batch.documents.table
    expected = {
        (source.name, seen.row, seen.start): seen
        for source in mix.sources()
        for seen in Rows(source, slots, mix.overflow).all
    }
    numbers = np.zeros(batch.input_ids.shape, np.int64)
    for at, (pack, slot, length) in enumerate(zip(table.pack, table.slot, table.length, strict=True)):
        taken = -(-length // align) * align
        assert slot % align == 0
        mine, gap = slice(slot, slot + length), slice(slot + length, slot + taken)
        seen = expected[batch.sources[table.source[at]], int(table.row[at]), int(table.start[at])]
        assert tuple(batch.input_ids[pack, mine].tolist()) == seen.ids
        assert tuple((batch.labels[pack, mine] >= 0).tolist()) == seen.labelled
        assert batch.input_ids[pack, gap].tolist() == [PAD] * (taken - length)
        assert batch.labels[pack, gap].tolist() == [-100] * (taken - length)
        whole = slice(slot, slot + taken)
        assert batch.position_ids[pack, whole].tolist() == list(range(table.start[at], table.start[at] + taken))
        numbers[pack, whole] = table.number[at]
    assert np.array_equal(batch.document_ids.numpy(), numbers), "documents overlap, or slots belong to none"
    padding = numbers == 0
    assert (batch.input_ids.numpy()[padding] == PAD).all()
    assert not batch.position_ids.numpy()[padding].any()


def assert_equal(mine: Batch, theirs: Batch) -> None:
    for name in ("input_ids", "labels", "position_ids", "document_ids"):
        assert np.array_equal(getattr(mine, name).numpy(), getattr(theirs, name).numpy()), name
    assert mine.rows == theirs.rows


@settings(max_examples=30)
@given(mix=mixes(), align=st.integers(2, 5), cut=st.integers(1, 5))
def test_documents_take_multiples_and_the_stream_goes_on_exactly(mix: Mix, align: int, cut: int) -> None:
    whole = list(islice(loader(mix, align), 7))
    for batch in whole:
        check(batch, mix, align)
    first = loader(mix, align)
    assert len(list(islice(first, cut))) == cut
    halves = [loader(mix, align, dp=Shard(rank, 2)) for rank in range(2)]
    for half in halves:
        half.load_state_dict(first.state_dict())
    for number, parts in enumerate(zip(*map(iter, halves), strict=True), cut):
        if number == len(whole):
            break
        assert [rows for part in parts for rows in part.rows] == whole[number].rows
    ahead = loader(mix, align)
    advance(ahead, 6)
    assert_equal(next(iter(ahead)), whole[6])


def test_a_worker_process_gives_the_same_batches() -> None:
    mix = Mix()
    for mine, theirs in islice(zip(loader(mix, 4), loader(mix, 4, workers=1), strict=True), 4):
        assert_equal(mine, theirs)


def test_evaluated_documents_take_multiples_too() -> None:
    mix = Mix()
    for packed in (True, False):
        batches = list(EvalLoader(mix.sources(), 12, align=4, packed=packed, pad_id=PAD, batch_size=2))
        for batch in batches:
            check(batch, mix, 4)
            assert batch.input_ids.shape[1] % 4 == 0
        assert sum(len(pack) for batch in batches for pack in batch.rows) == sum(len(rows.all) for rows in mix.rows())


def test_it_belongs_to_what_defines_a_stream() -> None:
    state = loader(Mix(), 1).state_dict()
    assert "align" not in state["fingerprint"], "streams that have begun go on"
    with pytest.raises(StateError, match=r"packing\.align: 1 in the state, 4 here"):
        loader(Mix(), 4).load_state_dict(state)


def test_packs_hold_no_more_than_their_slots() -> None:
    source = ListSource("rows", [([row] * 5, [1] * 5) for row in range(8)])
    batch = next(iter(Loader(Packer(source, 16, align=8), global_batch_size=4, background=False)))
    assert [len(pack) for pack in batch.rows] == [2, 2, 2, 2], "three of 5 tokens would fit without alignment"
    assert "documents take multiples of 8" in str(Packer(source, 16, align=8).info)


@pytest.mark.parametrize(
    ("align", "expected"),
    [(0, "not a number of slots"), (True, "not a number"), (5, "does not divide .* to 15")],
)
def test_values_that_do_not_fit_are_refused(align: int, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Packing(sequence_length=16, align=align)
