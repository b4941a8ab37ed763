"""Masks for packed attention: each document sees itself alone, and padding sees padding."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn import functional

from streamsft.stream.attention import block_causal_mask, cu_seqlens, flex_block_mask
from streamsft.stream.collate import Batch
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.packing import Overflow
from streamsft.training.model import tiny_model
from tests.fakes import ListSource


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


# Of a real model: every helper gives each document the logits that it has alone -----------------------------------


def _packs(overflow: Overflow = "truncate", align: int = 1) -> Batch:
    rows = [([row + at for at in range(length)], [1] * length) for row, length in enumerate((5, 11, 3, 7, 30, 2, 9, 4))]
    packer = Packer(ListSource("rows", rows), 24, overflow=overflow, align=align, lookahead=8)
    return next(iter(Loader(packer, global_batch_size=3, background=False)))


def _alone(model: torch.nn.Module, batch: Batch) -> list[tuple[int, slice, torch.Tensor]]:
    """Pack, slots and logits of each document of the batch by itself."""
    found = []
    table = batch.documents.table
    for pack, slot, length in zip(table.pack.tolist(), table.slot.tolist(), table.length.tolist(), strict=True):
        part = slice(slot, slot + length)
        with torch.no_grad():
            output = model(
                input_ids=batch.input_ids[pack : pack + 1, part], position_ids=batch.position_ids[pack : pack + 1, part]
            )
        found.append((pack, part, output.logits[0]))
    return found


def _sdpa(batch: Batch) -> dict[str, Any]:
    return batch.model_inputs()


def _added(batch: Batch) -> dict[str, Any]:
    return batch.model_inputs(torch.float32)


def _borders(batch: Batch) -> dict[str, Any]:
    return batch.packed_inputs()


@pytest.mark.parametrize("align", [1, 4])
@pytest.mark.parametrize(
    ("implementation", "inputs"), [("sdpa", _sdpa), ("eager", _added), ("sdpa", _borders), ("eager", _borders)]
)
def test_a_model_gives_each_document_of_a_pack_the_logits_that_it_has_alone(
    implementation: str, inputs: Callable[[Batch], dict[str, Any]], align: int
) -> None:
    model = tiny_model(64, sequence_length=24, hidden=32, heads=2).eval()
    model.set_attn_implementation(implementation)  # type: ignore[operator]
    batch = _packs(align=align)
    with torch.no_grad():
        logits = model(**inputs(batch)).logits.reshape(*batch.input_ids.shape, -1)
    assert len(batch.documents.table.pack) >= 6
    for pack, part, alone in _alone(model, batch):
        torch.testing.assert_close(logits[pack, part], alone, rtol=0, atol=1e-5)


def _heads(seed: int, packs: int, slots: int, device: str = "cpu") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(packs, 2, slots, 16, generator=generator).to(device) for _ in range(3)]


def _reference(batch: Batch, heads: list[torch.Tensor]) -> torch.Tensor:
    """Attention of each document by itself, 0 on what belongs to none."""
    result = torch.zeros_like(heads[0])
    for pack in range(len(batch)):
        numbers = batch.document_ids[pack]
        for number in range(1, int(numbers.max()) + 1):
            mine = numbers == number
            one = (part[pack : pack + 1, :, mine] for part in heads)
            result[pack, :, mine] = functional.scaled_dot_product_attention(*one, is_causal=True)[0]
    return result


def _compare(found: torch.Tensor, batch: Batch, heads: list[torch.Tensor], tolerance: float) -> None:
    seen = (batch.document_ids > 0)[:, None, :, None].to(found.device)
    torch.testing.assert_close(found * seen, _reference(batch, heads), rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("overflow", ["truncate", "split"])
def test_flex_attention_sees_each_document_alone(overflow: Overflow) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    batch = _packs(overflow)
    heads = _heads(1, *batch.input_ids.shape)
    found = flex_attention(*heads, block_mask=flex_block_mask(batch.document_ids))
    _compare(found, batch, heads, 1e-5)


@pytest.mark.parametrize("overflow", ["truncate", "split"])
def test_segments_by_borders_are_each_document_alone(overflow: Overflow) -> None:
    """What a variable-length kernel does, written out: attention within each segment of the flattened packs."""
    batch = _packs(overflow)
    packs, slots = batch.input_ids.shape
    heads = _heads(2, packs, slots)
    flat = [part.transpose(1, 2).reshape(1, packs * slots, 2, 16).transpose(1, 2) for part in heads]
    borders = cu_seqlens(batch.document_ids)[0].tolist()
    parts = [
        functional.scaled_dot_product_attention(*(part[:, :, a:b] for part in flat), is_causal=True)
        for a, b in pairwise(borders)
    ]
    found = torch.cat(parts, 2).transpose(1, 2).reshape(packs, slots, 2, 16).transpose(1, 2)
    _compare(found, batch, heads, 1e-5)


def test_packed_inputs_are_the_packs_end_to_end_with_their_borders() -> None:
    batch = _packs()
    inputs = batch.packed_inputs()
    borders, longest = cu_seqlens(batch.document_ids)
    for name in ("input_ids", "position_ids", "labels"):
        assert torch.equal(inputs[name], getattr(batch, name).reshape(1, -1))
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        assert torch.equal(inputs[name], borders)
    assert inputs["max_length_q"] == inputs["max_length_k"] == longest
    starts = borders[:-1].long()
    assert (inputs["labels"][0, starts] == -100).all(), "a model that shifts predicts no first token of a document"


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
def test_the_compiled_kernel_of_flex_attention_sees_each_document_alone() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    batch = _packs("split").to("cuda")
    heads = _heads(3, *batch.input_ids.shape, device="cuda")
    found = torch.compile(flex_attention)(*heads, block_mask=flex_block_mask(batch.document_ids))
    _compare(found, batch, heads, 5e-3)  # it multiplies in TF32


@needs_gpu
def test_the_variable_length_kernel_sees_each_document_alone() -> None:
    from torch.nn.attention.varlen import varlen_attn

    batch = _packs("split").to("cuda")
    packs, slots = batch.input_ids.shape
    heads = _heads(4, packs, slots, device="cuda")
    flat = [part.transpose(1, 2).reshape(packs * slots, 2, 16).to(torch.bfloat16) for part in heads]
    borders, longest = cu_seqlens(batch.document_ids)
    found = varlen_attn(*flat, borders, borders, longest, longest, window_size=(-1, 0))
    assert isinstance(found, torch.Tensor)
    _compare(found.float().reshape(packs, slots, 2, 16).transpose(1, 2), batch, heads, 3e-2)
