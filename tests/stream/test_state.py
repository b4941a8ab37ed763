"""How two fingerprints are compared."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from streamsft.stream.interleave import Interleave
from streamsft.stream.packer import Packer
from streamsft.stream.sourcestream import SourceStream
from streamsft.stream.state import describe_plan, differences
from tests.fakes import source
from tests.mixes import Mix, mixes


def test_each_difference_has_a_line_with_both_values() -> None:
    left = {"seed": 1, "lookahead": 8, "sources": {"a": ["11", 0.5], "b": ["22", 0.5]}}
    right = {"seed": 2, "lookahead": 8, "sources": {"a": ["11", 0.25], "c": ["33", 0.75, "none"]}}
    assert differences(left, right) == [
        "seed: 1 in the state, 2 here",
        "mix.sources.a.weight, as a share of all draws: 0.5 in the state, 0.25 here",
        "mix.sources.b: in the state, not here",
        "mix.sources.c: here, not in the state",
    ]


def test_parts_are_called_what_a_config_calls_them() -> None:
    left = {"seed": 1, "lookahead": 8, "overflow": "drop", "unit": "samples", "lanes": [1, 1], "tokenizer": "ab"}
    right = {"seed": 1, "lookahead": 0, "overflow": "split", "unit": "tokens", "lanes": [2, 1], "tokenizer": "cd"}
    assert differences(
        {**left, "sources": {"a": ["11", 1.0]}, "schedules": {"a": {"0": 1}}},
        {**right, "sources": {"a": ["12", 1.0]}, "schedules": {}},
    ) == [
        "loader.lanes_per_step and lane_groups: [1, 1] in the state, [2, 1] here; give those of the state, and a "
        "loader.global_batch_size that lanes_per_step divides",
        "packing.lookahead: 8 in the state, 0 here",
        "packing.overflow: 'drop' in the state, 'split' here",
        "tokenizer, by a digest of it: 'ab' in the state, 'cd' here",
        "mix.unit: 'samples' in the state, 'tokens' here",
        "mix.sources.a, by a digest of its contents: '11' in the state, '12' here",
        "mix.sources.a.weight, by step: {'0': 1} in the state, 'absent' here",
    ]


@pytest.mark.parametrize(
    ("theirs", "ours", "lines"),
    [
        ("overflow: split", "", ["overflow: 'split' in the state, 'as packing.overflow' here"]),
        ("none; overflow: split", "none; overflow: drop", ["overflow: 'split' in the state, 'drop' here"]),
        ("blocks of 20 rows, 64 bytes", "blocks of 30 rows, 64 bytes", ["shuffle_window: 20 in the state, 30 here"]),
        ("", "blocks of 30 rows, 64 bytes", ["streaming: False in the state, True here"]),
        (
            "none, blocks of 9 rows, 64 bytes",
            "blocks of 9 rows, 64 bytes",
            ["shuffle: 'none' in the state, 'rows' here"],
        ),
        (
            "blocks of 2 row groups, ab12; overflow: drop",
            "blocks of 3 row groups, ab12",
            [
                "overflow: 'drop' in the state, 'as packing.overflow' here",
                "shuffle: 'blocks of 2 row groups, ab12' in the state, 'blocks of 3 row groups, ab12' here",
            ],
        ),
    ],
)
def test_what_the_order_of_a_source_depends_on_is_told_by_its_keys(theirs: str, ours: str, lines: list[str]) -> None:
    left, right = ({"sources": {"a": ["11", 1.0, *([order] if order else [])]}} for order in (theirs, ours))
    assert differences(left, right) == [f"mix.sources.a.{line}" for line in lines]


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
        "mix.sources.s.shuffle: 'rows' in the state, 'none' here"
    ]
