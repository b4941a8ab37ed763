"""Masks for packed attention: each document sees itself alone, and padding sees padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn import functional

from streamsft.stream.attention import block_causal_mask, cu_seqlens, flex_block_mask


def _ids(*packs: list[int]) -> torch.Tensor:
    return torch.tensor(packs, dtype=torch.int64)


@st.composite
def document_ids(draw: st.DrawFn) -> torch.Tensor:
    slots = draw(st.integers(1, 12))
    packs = []
    for _ in range(draw(st.integers(1, 3))):
        lengths = draw(st.lists(st.integers(1, 5), max_size=6))
        numbers = [number for number, length in enumerate(lengths, 1) for _ in range(length)][:slots]
        packs.append(numbers + [0] * (slots - len(numbers)))
    return _ids(*packs)


@given(ids=document_ids())
def test_a_slot_sees_the_slots_before_it_of_its_own_document(ids: torch.Tensor) -> None:
    mask = block_causal_mask(ids)
    packs, slots = ids.shape
    assert mask.shape == (packs, 1, slots, slots)
    assert mask.dtype == torch.bool
    for pack in range(packs):
        for query in range(slots):
            seen = [key <= query and bool(ids[pack, key] == ids[pack, query]) for key in range(slots)]
            assert mask[pack, 0, query].tolist() == seen
    assert mask.any(-1).all(), "a row that sees nothing"


def test_softmax_over_padding_is_finite() -> None:
    mask = block_causal_mask(_ids([1, 1, 1, 2, 2, 0, 0, 0]))
    weights = torch.zeros(1, 1, 8, 8).masked_fill(~mask, -torch.inf).softmax(-1)
    assert weights.isfinite().all()


@given(ids=document_ids())
def test_segments_are_the_documents_and_the_padding_of_each_pack(ids: torch.Tensor) -> None:
    borders, longest = cu_seqlens(ids)
    assert borders.dtype == torch.int32
    assert borders[0] == 0
    assert borders[-1] == ids.numel()
    assert (borders.diff() > 0).all()
    assert longest == int(borders.diff().max())
    flat, slots = ids.flatten().tolist(), ids.shape[1]
    inside = set(range(len(flat))) - set(borders.tolist())
    assert all(flat[at] == flat[at - 1] and at % slots for at in inside)
    assert all(flat[at] != flat[at - 1] or at % slots == 0 for at in borders[1:-1].tolist())


def test_flex_attention_gets_the_same_mask() -> None:
    ids = _ids([1, 1, 1, 2, 2, 0, 0, 0], [1, 2, 2, 2, 3, 3, 3, 3])
    block = flex_block_mask(ids)
    at = torch.arange(8)
    found = torch.stack(
        [
            torch.stack([block.mask_mod(torch.tensor(pack), torch.tensor(0), query, at) for query in at])
            for pack in range(2)
        ]
    )
    assert torch.equal(found, block_causal_mask(ids)[:, 0])


def _logits(embed: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A one-layer attention in float64 with learned positions."""
    hidden = embed[tokens] + torch.sin(positions[..., None] * torch.arange(1, 9, dtype=torch.float64))
    attended = functional.scaled_dot_product_attention(hidden, hidden, hidden, attn_mask=mask)
    return (hidden + attended) @ embed.T


@settings(max_examples=10)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 2**30))
def test_logits_of_a_document_in_a_pack_equal_its_logits_alone(lengths: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    embed = torch.randn(20, 8, dtype=torch.float64, generator=generator)
    slots = sum(lengths) + 3
    tokens = torch.randint(0, 20, (1, slots), generator=generator)
    ids, positions = torch.zeros(1, slots, dtype=torch.int64), torch.zeros(1, slots, dtype=torch.int64)
    at = 0
    for number, length in enumerate(lengths, 1):
        ids[0, at : at + length], positions[0, at : at + length] = number, torch.arange(length)
        at += length
    packed = _logits(embed, tokens, positions, block_causal_mask(ids)[:, 0])
    changed = tokens.clone()
    changed[ids == 1] = (changed[ids == 1] + 1) % 20
    other = _logits(embed, changed, positions, block_causal_mask(ids)[:, 0])
    for number in range(1, len(lengths) + 1):
        mine = ids[0] == number
        count = int(mine.sum())
        causal = torch.ones(count, count, dtype=torch.bool).tril()
        alone = _logits(embed, tokens[:, mine], torch.arange(count)[None], causal)
        torch.testing.assert_close(packed[:, mine], alone, rtol=0, atol=1e-12)
        if number > 1:
            assert torch.equal(packed[:, mine], other[:, mine]), "another document's tokens are seen"


@pytest.mark.parametrize("pack", [[0, 0, 0], [1, 1, 1]])
def test_packs_of_padding_or_of_one_document(pack: list[int]) -> None:
    borders, longest = cu_seqlens(_ids(pack))
    assert (borders.tolist(), longest) == ([0, 3], 3)
    assert block_causal_mask(_ids(pack))[0, 0].tolist() == torch.ones(3, 3).tril().bool().tolist()
