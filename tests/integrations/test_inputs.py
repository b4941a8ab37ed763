"""Documents of a pack are apart for `transformers` models that are given positions and no mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from torch.nn.attention.flex_attention import create_block_mask
from transformers import masking_utils
from transformers.modeling_flash_attention_utils import _is_packed_sequence, prepare_fa_kwargs_from_position_ids

from streamsft.errors import ConfigError
from streamsft.integrations.inputs import check_attention, packed_inputs, restarting_positions
from streamsft.stream.attention import block_causal_mask, cu_seqlens
from streamsft.stream.collate import Batch
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from tests.fakes import source
from tests.stream.test_attention import document_ids
from tests.training.runs import LENGTH, VOCABULARY, small_model


def batch(overflow: str = "truncate") -> Batch:
    packer = Packer(source("s", [5, 40, 9, 12, 32, 3, 70]), LENGTH, lookahead=0, overflow=overflow)  # type: ignore[arg-type]
    loader = Loader(packer, global_batch_size=12, background=False)
    found = next(iter(loader))
    found.input_ids.remainder_(VOCABULARY)
    found.labels[found.labels >= 0] %= VOCABULARY
    return found


def model_of(implementation: str) -> torch.nn.Module:
    model = small_model().eval()
    model.config._attn_implementation = implementation  # type: ignore[union-attr]
    return model


@pytest.mark.parametrize("overflow", ["truncate", "split"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_logits_of_each_document_equal_its_own_alone(implementation: str, overflow: str) -> None:
    packs, model = batch(overflow), model_of(implementation)
    assert check_attention(model) is False
    alone_model = model_of("sdpa")
    with torch.no_grad():
        packed = model(**packed_inputs(packs), use_cache=False).logits
        flat = model(**packed_inputs(packs, flat=True), use_cache=False).logits
    assert torch.allclose(flat.reshape(packed.shape), packed, atol=1e-5)
    seen = 0
    for pack, ids in enumerate(packs.document_ids):
        for number in ids.unique().tolist():
            place = ids == number
            with torch.no_grad():
                alone = alone_model(packs.input_ids[pack, place][None]).logits[0]
            if number:
                seen += 1
                assert torch.allclose(packed[pack, place], alone, atol=1e-5)
    assert seen > len(packs)


@pytest.mark.parametrize("overflow", ["truncate", "split"])
def test_flex_attention_gets_a_mask_in_which_documents_are_apart(
    overflow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uncompiled(*args: Any, _compile: bool = False, **kwargs: Any) -> Any:  # which takes half a minute
        return create_block_mask(*args, **kwargs)

    monkeypatch.setattr(masking_utils, "create_block_mask", uncompiled)
    packs, model = batch(overflow), model_of("flex_attention")
    assert check_attention(model) is False
    inputs = packed_inputs(packs)
    embedded = torch.zeros(*packs.input_ids.shape, 1)
    mask = masking_utils.create_causal_mask(
        model.config, embedded, None, cache=None, position_ids=inputs["position_ids"]
    )
    at = torch.arange(LENGTH)
    for pack, seen in enumerate(block_causal_mask(packs.document_ids)[:, 0]):
        found = torch.stack([mask.mask_mod(torch.tensor(pack), torch.tensor(0), query, at) for query in at])
        assert torch.equal(found, seen)


@given(ids=document_ids())
def test_flash_attention_finds_the_documents_and_the_padding_of_each_pack(ids: torch.Tensor) -> None:
    positions = restarting_positions(ids).reshape(1, -1)
    (borders, _), (longest, _) = prepare_fa_kwargs_from_position_ids(positions)
    expected, most = cu_seqlens(ids)
    assert torch.equal(borders, expected)
    assert int(longest) == most
    assert bool(_is_packed_sequence(positions, 1)) == (len(expected) > 2)


def test_fragments_of_a_split_row_restart() -> None:
    packs = batch("split")
    begins = torch.ones_like(packs.document_ids, dtype=torch.bool)
    begins[:, 1:] = packs.document_ids.diff() != 0
    assert packs.position_ids[begins].max() > 0
    assert restarting_positions(packs.document_ids)[begins].max() == 0


def test_attention_of_which_nothing_is_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="has attention 'paged_something'"):
        check_attention(model_of("paged_something"))
    with pytest.raises(ConfigError, match="has attention None"):
        check_attention(torch.nn.Linear(1, 1))
    assert check_attention(model_of("flash_attention_2")) is True
