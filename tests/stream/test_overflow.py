"""Sources with an overflow policy of their own beside others: each is cut as if it were alone, however it is read."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError, DataError
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.packing import Overflow
from streamsft.stream.skipping import advance
from streamsft.stream.sourcestream import SourceStream
from tests.fakes import ListSource, streamed
from tests.laws import Rows, samples, tokens_conserved
from tests.mixes import random_rows

POLICIES = ("truncate", "drop", "split")


def loader(
    sources: list[ListSource], own: tuple[Overflow | None, ...], whole: Overflow, limit: int, unit: Any
) -> Loader:
    children = [SourceStream(source, overflow=policy) for source, policy in zip(sources, own, strict=True)]
    mix = Interleave(children, [1.0] * len(children), seed=3, unit=unit)
    return Loader(Packer(mix, limit, lookahead=9, overflow=whole), global_batch_size=4, background=False)


@settings(max_examples=30)
@given(
    lengths=st.lists(st.lists(st.integers(1, 40), max_size=6), min_size=2, max_size=3),
    whole=st.sampled_from(POLICIES),
    unit=st.sampled_from(["samples", "tokens"]),
    data=st.data(),
)
def test_each_source_is_cut_by_its_own_policy_over_resumes_and_far_ahead(
    lengths: list[list[int]], whole: Overflow, unit: str, data: st.DataObject
) -> None:
    sources = [random_rows(f"s{at}", 1, [2, *part]) for at, part in enumerate(lengths)]
    own = tuple(data.draw(st.sampled_from([None, *POLICIES])) for _ in sources)
    made = loader(sources, own, whole, 12, unit)
    batches = list(islice(made, 6))
    found = [seen for batch in batches for pack in samples(batch) for seen in pack]
    tokens_conserved(found, [Rows(source, 12, policy or whole) for source, policy in zip(sources, own, strict=True)])
    ahead = loader(sources, own, whole, 12, unit)
    advance(ahead, 5)
    assert next(iter(ahead)).rows == batches[5].rows
    half = loader(sources, own, whole, 12, unit)
    assert len(list(islice(half, 3))) == 3
    rest = loader(sources, own, whole, 12, unit)
    rest.load_state_dict(half.state_dict())
    assert [batch.rows for batch in islice(rest, 3)] == [batch.rows for batch in batches[3:]]


def test_a_source_that_is_read_in_order_may_have_one_too() -> None:
    rows = [([row] * 20, [1] * 20, "") for row in range(4)]
    for policy, lengths in (("split", {12, 8}), ("truncate", {12})):
        stream = streamed("s", [rows], overflow=policy)
        made = Loader(Packer(stream, 12, lookahead=4, overflow="error"), global_batch_size=8, background=False)
        batch = next(iter(made))
        assert set(batch.documents.table.length.tolist()) == lengths


def test_a_policy_that_is_the_mixs_own_leaves_the_stream_as_it_is() -> None:
    source = random_rows("s", 2, [2, 30, 5, 17, 9])
    named, plain = (loader([source], (policy,), "split", 12, "samples") for policy in ("split", None))
    assert [b.rows for b in islice(named, 4)] == [b.rows for b in islice(plain, 4)]
    assert plain.fingerprint["sources"]["s"][2:] == []
    assert named.fingerprint["sources"]["s"][2:] == ["overflow: split"]


def test_what_is_none_is_refused() -> None:
    source = random_rows("s", 2, [2, 30])
    with pytest.raises(ConfigError, match="'s': overflow: 'cut' is none of truncate, drop, split, error"):
        SourceStream(source, overflow="cut")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="30 tokens do not fit"):
        loader([source], ("error",), "truncate", 12, "samples")
