"""`EvalLoader`: each sample once on any number of ranks, in equally many steps, and nothing lost in a tail."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError, DataError, EmptySourceError
from streamsft.stream.collate import Batch
from streamsft.stream.evaluation import EvalLoader
from streamsft.types import Shard
from tests.fakes import ListSource, streamed
from tests.laws import Seen, samples
from tests.mixes import Mix, mixes, random_rows


def on_ranks(sources: Any, count: int, **options: Any) -> list[list[Batch]]:
    """The batches of each rank."""
    return [list(EvalLoader(sources, dp=Shard(rank, count), **options)) for rank in range(count)]


def documents(batches: list[Batch]) -> Counter[Seen]:
    """Every document of the batches, token for token and label for label."""
    return Counter(seen for batch in batches for pack in samples(batch) for seen in pack)


def joined(ranks: list[list[Batch]]) -> list[Batch]:
    return [batch for batches in ranks for batch in batches]


@settings(max_examples=30)
@given(mix=mixes(), ranks=st.integers(1, 5), batch_size=st.integers(1, 4), packed=st.booleans())
def test_every_sample_comes_once_in_as_many_steps_on_every_rank(
    mix: Mix, ranks: int, batch_size: int, packed: bool
) -> None:
    options: dict[str, Any] = {
        "sequence_length": mix.sequence_length,
        "batch_size": batch_size,
        "packed": packed,
        "lookahead": mix.lookahead,
        "overflow": mix.overflow,
    }
    found = on_ranks(mix.sources(), ranks, **options)
    assert {len(batches) for batches in found} == {len(EvalLoader(mix.sources(), dp=Shard(0, ranks), **options))}
    assert all(len(batch) == batch_size for batch in joined(found))
    expected = Counter(seen for rows in mix.rows() for seen in rows.all)
    assert documents(joined(found)) == expected
    assert EvalLoader(mix.sources(), **options).samples == len({(seen.source, seen.row) for seen in expected})


def test_ranks_behind_the_last_pack_get_padding_that_no_loss_counts() -> None:
    source = ListSource("three", [([row, 1, 2], [0, 1, 1]) for row in range(3)])
    found = on_ranks(source, 4, sequence_length=8, batch_size=2, packed=False, pad_id=9)
    assert [len(batches) for batches in found] == [1, 1, 1, 1]
    assert [batch.rows for batch in joined(found)] == [
        [[("three", 0, 0)], [("three", 1, 0)]],
        [[("three", 2, 0)], []],
        [[], []],
        [[], []],
    ]
    assert [batch.supervised_tokens for batch in joined(found)] == [4, 2, 0, 0]
    half, empty = found[1][0], found[3][0]
    assert half.input_ids.tolist() == [[2, 1, 2], [9, 9, 9]]
    assert empty.input_ids.tolist() == [[9, 9], [9, 9]]
    for batch, pack in ((half, 1), (empty, 0)):
        assert (batch.labels[pack] == -100).all()
        assert not batch.document_ids[pack].any()
        assert not batch.position_ids[pack].any()
    assert [len(part) for part in empty.split(1)] == [1, 1]
    assert empty.model_inputs()["attention_mask"].any(-1).all()


def test_packs_that_stand_together_on_a_rank_do_on_any_number_of_them() -> None:
    source = random_rows("rows", 3, [5, 9, 2, 7, 4, 8, 3, 6, 11, 5, 4, 2, 9])
    for packed in (True, False):
        alone = [b for b in on_ranks(source, 1, sequence_length=12, batch_size=2, packed=packed)[0] if any(b.rows)]
        for ranks in (2, 3):
            steps = zip(*on_ranks(source, ranks, sequence_length=12, batch_size=2, packed=packed), strict=True)
            together = [batch for step in steps for batch in step if any(batch.rows)]
            assert len(together) == len(alone)
            for mine, theirs in zip(alone, together, strict=True):
                assert mine.rows == theirs.rows
                assert torch.equal(mine.input_ids, theirs.input_ids)
                assert torch.equal(mine.labels, theirs.labels)


def test_rows_of_one_document_are_as_long_as_the_longest_beside_them() -> None:
    source = ListSource("rows", [([1] * n, [1] * n) for n in (2, 12, 5, 7)])
    batches = list(EvalLoader(source, 10, batch_size=2, packed=False))
    assert [batch.input_ids.shape[1] for batch in batches] == [10, 5]
    assert [[row for _, row, _ in pack] for batch in batches for pack in batch.rows] == [[1], [3], [2], [0]]


def test_it_can_be_iterated_again_and_tells_what_it_leaves_out() -> None:
    source = ListSource("rows", [([1] * 4, [0, 0, 0, 1]), ([1] * 4, [1, 0, 0, 0]), ([1] * 20, [0] * 19 + [1])])
    loader = EvalLoader(source, 8)
    assert [batch.rows[0] for batch in loader] == [batch.rows[0] for batch in loader] == [[("rows", 0, 0)]]
    assert (loader.samples, loader.packs, len(loader)) == (1, 1, 1)
    assert loader.dropped == {"rows": {"nothing_supervised": 2}}


def test_what_cannot_be_evaluated_is_refused() -> None:
    source = ListSource("rows", [([1] * 4, [1] * 4)])
    with pytest.raises(ConfigError, match="batch_size 0 is not a number of packs"):
        EvalLoader(source, 8, batch_size=0)
    with pytest.raises(ConfigError, match="'s' is read in order"):
        EvalLoader(streamed("s", [[([1, 2], [0, 1], "")]]), 8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="int is no source"):
        EvalLoader([1], 8)  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="rows"):
        EvalLoader([source, source], 8)
    with pytest.raises(DataError, match=r"rows\.list, row 0: 4 tokens do not fit"):
        EvalLoader(source, 3, overflow="error")
    with pytest.raises(EmptySourceError, match="has no row that could be drawn"):
        EvalLoader(ListSource("empty", []), 8)
