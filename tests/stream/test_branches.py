"""Preference pairs in batches: positions, branches, masks, and that none is cut."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from streamsft.errors import ConfigError, DataError
from streamsft.integrations.inputs import packed_inputs
from streamsft.sources.pairs import SideBySide
from streamsft.stream.attention import block_causal_mask, flex_mask_mod
from streamsft.stream.collate import Batch
from streamsft.stream.evaluation import EvalLoader
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from tests.fakes import source
from tests.pairs import PairSource, answers, pair_source


def first_batch(sources: list[Any], length: int = 24, packs: int = 1, **options: Any) -> Batch:
    align = options.pop("align", 1)
    packer = Packer(Interleave(sources), length, lookahead=32, align=align)
    return next(iter(Loader(packer, global_batch_size=packs, **{"background": False, **options})))


ONE = PairSource("p", [([1, 2, 3], [4, 5], [6])])


def test_a_pair_that_shares_its_prompt_is_one_document_with_two_branches() -> None:
    batch = first_batch([ONE], 10)
    assert batch.input_ids[0].tolist() == [1, 2, 3, 4, 5, 3, 6, 0, 0, 0]
    assert batch.labels[0].tolist() == [-100, -100, -100, 4, 5, -100, 6, -100, -100, -100]
    assert batch.position_ids[0].tolist() == [0, 1, 2, 3, 4, 2, 3, 0, 0, 0]
    assert batch.document_ids[0].tolist() == [1, 1, 1, 1, 1, 1, 1, 0, 0, 0]
    assert batch.branch_ids is not None
    assert batch.branch_ids[0].tolist() == [0, 0, 1, 1, 1, 2, 2, 0, 0, 0]
    assert [column.tolist() for column in batch.pairs] == [[0], [0], [2], [3], [2]]


def test_a_pair_side_by_side_is_two_documents_and_those_behind_it_count_on() -> None:
    batch = first_batch([SideBySide(ONE), source("text", [4])], 16)
    assert batch.branch_ids is None
    before = batch.input_ids[0].tolist().index(1)
    pair = slice(before, before + 9)
    assert batch.input_ids[0, pair].tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 6]
    assert batch.labels[0, pair].tolist() == [-100, -100, -100, 4, 5, -100, -100, -100, 6]
    assert batch.position_ids[0, pair].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    numbers, counts = batch.document_ids[0].unique_consecutive(return_counts=True)
    assert numbers.tolist() in ([1, 2, 3, 0], [1, 2, 3])
    assert sorted(counts[:3].tolist()) == [4, 4, 5]
    assert [column.tolist() for column in batch.pairs] == [[0], [before], [0], [5], [4]]


@pytest.fixture(params=["shared", "side by side"])
def batch(request: pytest.FixtureRequest) -> Batch:
    sizes = [(2 + n % 5, 1 + n % 4, 1 + n % 3) for n in range(24)]
    pairs: Any = pair_source("pairs", sizes)
    return first_batch([pairs if request.param == "shared" else SideBySide(pairs)], packs=4, pad_id=9)


def test_the_mask_lets_a_branch_see_the_prompt_and_itself_alone(batch: Batch) -> None:
    mask = block_causal_mask(batch.document_ids, batch.branch_ids)
    store = pair_source("pairs", [(2 + n % 5, 1 + n % 4, 1 + n % 3) for n in range(24)])
    rows = [row for pack in batch.rows for _, row, _ in pack]
    assert len(rows) == len(batch.pairs) >= 6
    for number, row in enumerate(rows):
        pack, slot, shared, chosen, rejected = (int(column[number]) for column in batch.pairs)
        prompt = np.arange(slot, slot + shared)
        branches = slot + shared + np.arange(chosen), slot + shared + chosen + np.arange(rejected)
        for (ids, _), branch in zip(answers(store, row), branches, strict=True):
            seen = np.concatenate([prompt, branch])
            assert batch.input_ids[pack, seen].tolist() == ids.tolist()
            assert batch.position_ids[pack, seen].tolist() == list(range(len(ids)))
            for at, query in enumerate(seen.tolist()):
                assert mask[pack, 0, query].nonzero().flatten().tolist() == seen[: at + 1].tolist()
    assert bool(mask.any(-1).all())
    assert torch.equal(batch.model_inputs()["attention_mask"], mask)


def test_the_mask_mod_of_flex_attention_is_the_same_mask(batch: Batch) -> None:
    packs, slots = batch.document_ids.shape
    mod = flex_mask_mod(batch.document_ids, batch.branch_ids)
    found = create_mask(mod, packs, 1, slots, slots, device="cpu")
    assert torch.equal(found, block_causal_mask(batch.document_ids, batch.branch_ids))


def test_parts_and_copies_of_a_batch_keep_its_pairs(batch: Batch) -> None:
    parts = batch.split(1)
    assert sum(len(part.pairs) for part in parts) == len(batch.pairs)
    assert all((part.pairs.pack == 0).all() for part in parts)
    for copy in (batch.to("cpu"), pickle.loads(pickle.dumps(batch))):
        assert len(copy.pairs) == len(batch.pairs)
        assert (copy.branch_ids is None) == (batch.branch_ids is None)
        if batch.branch_ids is not None:
            assert torch.equal(copy.branch_ids, batch.branch_ids)
            assert torch.equal(torch.cat([part.branch_ids for part in parts]), batch.branch_ids)


def test_workers_give_the_same_pairs() -> None:
    sources = [pair_source("pairs", [(3, 2, 2)] * 9), source("text", [5, 4, 3])]
    here, there = first_batch(sources, packs=2), first_batch(sources, packs=2, workers=1)
    assert here.branch_ids is not None
    assert there.branch_ids is not None
    assert torch.equal(here.branch_ids, there.branch_ids)
    assert [column.tolist() for column in here.pairs] == [column.tolist() for column in there.pairs]
    assert torch.equal(here.position_ids, there.position_ids)


def test_attention_that_borders_or_positions_tell_is_refused_where_a_prompt_is_shared() -> None:
    shared, apart = first_batch([ONE], 10), first_batch([SideBySide(ONE)], 10)
    for inputs in (Batch.packed_inputs, packed_inputs):
        with pytest.raises(ConfigError, match="side_by_side"):
            inputs(shared)
        assert inputs(apart)["input_ids"].numel() == 10


@pytest.mark.parametrize("overflow", ["truncate", "drop", "split"])
def test_a_pair_that_is_too_long_is_left_out_and_counted(overflow: Any) -> None:
    pairs = pair_source("pairs", [(3, 2, 2), (3, 9, 9)])
    packer = Packer(Interleave([pairs]), 12, lookahead=8, overflow=overflow)
    loader = Loader(packer, global_batch_size=1, background=False)
    assert loader.sources[0].dropped == {"too_long": 1}
    batches = iter(loader)
    assert {row for _ in range(4) for pack in next(batches).rows for _, row, _ in pack} == {0}


def test_a_pair_that_is_too_long_is_an_error_where_that_is_asked_for() -> None:
    with pytest.raises(DataError, match="22 tokens do not fit"):
        Loader(Packer(Interleave([pair_source("pairs", [(3, 9, 9)])]), 12, overflow="error"), global_batch_size=1)


def test_documents_of_several_slots_each_hold_shared_pairs_but_none_side_by_side() -> None:
    batch = first_batch([ONE], 16, align=8)
    assert batch.position_ids[0, :7].tolist() == [0, 1, 2, 3, 4, 2, 3]
    with pytest.raises(ConfigError, match="not aligned"):
        first_batch([SideBySide(ONE)], 32, align=8)


def test_pairs_are_not_evaluated() -> None:
    with pytest.raises(ConfigError, match="source p: preference pairs are not evaluated"):
        EvalLoader(ONE, 16)
