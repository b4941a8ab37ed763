"""`Batch`: tensors, labels at the borders of documents, views, statistics."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError
from streamsft.stream.collate import Batch
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.sourcestream import SourceStream
from tests import laws
from tests.fakes import ListSource, source
from tests.mixes import Mix, mixes


def _batch(mix: Any, slots: int, *, packs: int = 1, lookahead: int, pad_id: int = 0, **options: Any) -> Batch:
    packer = Packer(mix, slots, lookahead=lookahead, **options)
    return next(iter(Loader(packer, global_batch_size=packs, background=False, pad_id=pad_id)))


def _two_documents() -> Batch:
    """Documents [1, 2, 3] and [4, 5], all supervised, in one pack of 8 slots."""
    data = ListSource("s", [([1, 2, 3], [1, 1, 1]), ([4, 5], [1, 1])])
    return _batch(SourceStream(data, shuffle=False), 8, lookahead=2, pad_id=99)


def test_no_label_crosses_the_border_of_two_documents() -> None:
    batch = _two_documents()
    wanted = {
        0: ([1, 2, 3, 4, 5], [-100, 2, 3, -100, 5], [0, 1, 2, 0, 1], [1, 1, 1, 2, 2]),
        1: ([4, 5, 1, 2, 3], [-100, 5, -100, 2, 3], [0, 1, 0, 1, 2], [1, 1, 2, 2, 2]),
    }[batch.rows[0][0][1]]
    ids, labels, positions, numbers = wanted
    assert batch.input_ids.tolist() == [[*ids, 99, 99, 99]]
    assert batch.labels.tolist() == [[*labels, -100, -100, -100]]
    assert batch.position_ids.tolist() == [[*positions, 0, 0, 0]]
    assert batch.document_ids.tolist() == [[*numbers, 0, 0, 0]]
    assert {tensor.dtype for tensor in (batch.input_ids, batch.labels, batch.position_ids, batch.document_ids)} == {
        torch.int64
    }
    assert batch.shifted_labels().tolist() == [[*labels[1:], -100, -100, -100, -100]]


def test_targets_are_the_answer_predicted_from_the_token_before() -> None:
    """Prompt [1, 2, 3], answer [4, 5, 6]: the loss sees 4, 5, 6 at the slots of 3, 4, 5."""
    batch = _batch(ListSource("s", [([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1])]), 8, lookahead=1)
    shifted = batch.shifted_labels()[0]
    predicted_from = batch.input_ids[0][shifted != -100]
    assert shifted[shifted != -100].tolist() == [4, 5, 6]
    assert predicted_from.tolist() == [3, 4, 5]
    logits = torch.zeros(1, 8, 10)
    logits[0, predicted_from - 1, torch.tensor([4, 5, 6])] = 50.0
    loss = torch.nn.functional.cross_entropy(logits[0], shifted, ignore_index=-100)
    assert loss < 1e-6


@settings(max_examples=15)
@given(mix=mixes(), packs=st.integers(1, 4))
def test_shifting_before_packing_is_shifting_after_it(mix: Mix, packs: int) -> None:
    loader = Loader(mix.packer(), global_batch_size=packs, background=False)
    stored = {part.source.name: part for part in mix.rows()}
    for _, batch in zip(range(4), loader, strict=False):
        assert batch.supervised_tokens == int((batch.labels != -100).sum())
        expected = []
        for pack, rows in enumerate(batch.rows):
            line: list[int] = []
            for number, (name, row, _) in enumerate(rows, 1):
                at = int(np.flatnonzero(stored[name].source.row_numbers == row)[0])
                start = int(batch.position_ids[pack][batch.document_ids[pack] == number][0])
                (piece,) = [seen for seen in stored[name].documents(at) if seen.start == start]
                labels = [t if on else -100 for t, on in zip(piece.ids, piece.labelled, strict=True)]
                line += [*labels[1:], -100]
            expected.append(line + [-100] * (mix.sequence_length - len(line)))
        assert batch.shifted_labels().tolist() == expected


@settings(max_examples=15)
@given(mix=mixes(), packs=st.integers(1, 7), size=st.integers(1, 9))
def test_split_gives_views_that_tile_the_batch(mix: Mix, packs: int, size: int) -> None:
    batch = next(iter(Loader(mix.packer(), global_batch_size=packs, background=False)))
    parts = batch.split(size)
    assert [len(part) for part in parts] == [min(size, packs - at) for at in range(0, packs, size)]
    for name in ("input_ids", "labels", "position_ids", "document_ids"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))
        assert getattr(parts[0], name).data_ptr() == getattr(batch, name).data_ptr()
    assert [rows for part in parts for rows in part.rows] == batch.rows
    assert sum(part.supervised_tokens for part in parts) == batch.supervised_tokens
    for column in ("source", "tokens", "supervised", "cut", "first", "pass_index"):
        together = np.concatenate([getattr(part.stats.columns, column) for part in parts])
        assert together.tolist() == getattr(batch.stats.columns, column).tolist()
    assert sum(part.stats.slots for part in parts) == batch.stats.slots == packs * mix.sequence_length
    assert {part.step for part in parts} == {batch.step}


def test_split_into_less_than_one_pack_is_refused() -> None:
    with pytest.raises(ConfigError, match="micro_batch_size: 0 packs"):
        _two_documents().split(0)


def test_statistics_count_documents_rows_and_cut_tokens() -> None:
    mix = Interleave([source("b", [13, 4]), source("a", [5])], [2, 1])
    batch = _batch(mix, 10, packs=2, lookahead=3)
    stats, columns = batch.stats, batch.stats.columns
    found = sorted(zip(columns.source.tolist(), columns.tokens.tolist(), columns.cut.tolist(), strict=True))
    assert set(found) <= {(0, 5, 0), (1, 10, 3), (1, 4, 0)}
    assert (stats.packs, stats.slots, len(stats)) == (2, 20, len(found))
    assert (columns.supervised == columns.tokens - 1).all()
    assert list(batch.sources) == ["a", "b"]


def test_row_counts_once_however_many_fragments_it_has() -> None:
    """Also where the first fragment is left out, for nothing in it is supervised."""
    rows = [([*range(12)], [0] * 6 + [1] * 6), ([*range(20, 28)], [0] + [1] * 7)]
    batch = _batch(ListSource("s", rows), 4, packs=4, lookahead=2, overflow="split")
    seen = list(zip(batch.documents.table.row.tolist(), batch.documents.table.start.tolist(), strict=True))
    assert sorted(seen) == [(0, 4), (0, 8), (1, 0), (1, 4)]
    assert sum(batch.stats.columns.first) == 2
    assert {row for (row, _), first in zip(seen, batch.stats.columns.first.tolist(), strict=True) if first} == {0, 1}


def test_model_inputs_are_block_causal() -> None:
    batch = _two_documents()
    inputs = batch.model_inputs()
    assert set(inputs) == {"input_ids", "attention_mask", "position_ids", "labels"}
    assert inputs["attention_mask"].dtype == torch.bool
    additive = batch.model_inputs(torch.float32)["attention_mask"]
    assert torch.equal(additive == 0, inputs["attention_mask"])
    assert set(additive.unique().tolist()) == {0.0, torch.finfo(torch.float32).min}


def test_moved_to_a_device_it_keeps_its_rows() -> None:
    batch = _two_documents()
    moved = batch.to("meta")
    assert moved.input_ids.device.type == "meta"
    assert moved.rows == batch.rows
    assert moved.step == batch.step == 1


@pytest.mark.parametrize("token", [2**31 - 1, 0])
def test_labels_keep_every_token_id(token: int) -> None:
    batch = _batch(ListSource("s", [([1, token], [0, 1])]), 2, lookahead=1)
    assert batch.labels.tolist() == [[-100, token]]


def test_values_of_the_stream_survive_pickling() -> None:
    batch = _two_documents()
    assert laws.samples(pickle.loads(pickle.dumps(batch))) == laws.samples(batch)
    assert pickle.loads(pickle.dumps(batch)).lanes == batch.lanes
    pack = next(iter(Mix().packer()))
    assert laws.samples(pickle.loads(pickle.dumps(pack))) == laws.samples(pack)
    info = Mix().packer().info
    assert pickle.loads(pickle.dumps(info)) == info
