"""How two fingerprints are compared."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from streamsft.stream.faces import SourceStream
from streamsft.stream.interleave import Interleave
from streamsft.stream.packer import Packer
from streamsft.stream.state import describe_plan, differences
from tests.fakes import source
from tests.mixes import Mix, mixes


def test_each_difference_has_a_line_with_both_values() -> None:
    left = {"seed": 1, "lookahead": 8, "sources": {"a": ["11", 0.5], "b": ["22", 0.5]}}
    right = {"seed": 2, "lookahead": 8, "sources": {"a": ["11", 0.25], "c": ["33", 0.75, "none"]}}
    assert differences(left, right) == [
        "seed: 1 in the state, 2 here",
        "sources.a.share: 0.5 in the state, 0.25 here",
        "sources.b.contents: '22' in the state, 'absent' here",
        "sources.b.share: 0.5 in the state, 'absent' here",
        "sources.c.contents: 'absent' in the state, '33' here",
        "sources.c.share: 'absent' in the state, 0.75 here",
        "sources.c.shuffle: 'absent' in the state, 'none' here",
    ]


@given(mix=mixes())
def test_fingerprint_is_the_same_after_a_way_through_json(mix: Mix) -> None:
    fingerprint = describe_plan(mix.packer().plan())
    assert differences(json.loads(json.dumps(fingerprint)), describe_plan(mix.packer().plan())) == []


@pytest.mark.parametrize("value", [None, 3, [], "x", {"seed": {"deep": 1}}])
def test_anything_may_be_compared(value: object) -> None:
    assert differences(value, {"seed": 1})


def test_order_of_input_is_part_of_the_fingerprint() -> None:
    data = source("s", [2, 3])
    plain, ordered = (Packer(Interleave([SourceStream(data, shuffle=shuffle)]), 8) for shuffle in (True, False))
    assert differences(plain.fingerprint, ordered.fingerprint) == [
        "sources.s.shuffle: 'absent' in the state, 'none' here"
    ]
