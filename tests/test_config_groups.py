"""The keys of stores that are read by row groups."""

from __future__ import annotations

from typing import Any

import pytest

from streamsft.config import SourceConfig, load_config
from streamsft.errors import ConfigError


def config(**source: Any) -> dict[str, Any]:
    return {"sequence_length": 64, "mix": {"sources": {"a": source}}}


def parsed(**source: Any) -> SourceConfig:
    found = load_config(config(**source)).mix.sources["a"]
    assert isinstance(found, SourceConfig)
    return found


@pytest.mark.parametrize(("text", "size"), [
    ("32GiB", 32 << 30), ("512 MiB", 512 << 20), ("1KiB", 1024), ("3TB", 3 * 10**12), ("7B", 7), (1000, 1000),
])  # fmt: skip
def test_a_size_is_a_number_of_bytes(text: object, size: int) -> None:
    tier = parsed(store="s", tier={"dir": "d", "budget": text}).tier
    assert tier is not None
    assert tier.budget == size


@pytest.mark.parametrize("text", ["32", "32 gigs", "GiB", "-1GiB", "1.5GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"mix\.sources\.a\.tier\.budget.*write bytes as 32GiB"):
        load_config(config(store="s", tier={"dir": "d", "budget": text}))


@pytest.mark.parametrize(("source", "by_groups"), [
    ({"store": "dir"}, False),
    ({"store": "s3://bucket/dir"}, True),
    ({"store": ["dir/a.parquet"], "shuffle": "row_groups"}, True),
    ({"store": "dir", "tier": {"dir": "d", "budget": 1}}, True),
    ({"store": "dir", "io": {"prefetch": 0}}, True),
    ({"path": "dir", "format": "tokens"}, False),
])  # fmt: skip
def test_which_stores_are_read_by_row_groups(source: dict[str, Any], by_groups: bool) -> None:
    assert parsed(**source).by_groups is by_groups


@pytest.mark.parametrize(("source", "message"), [
    ({"store": "s", "shuffle_groups": 4}, r"a\.shuffle_groups.*goes with shuffle: row_groups"),
    ({"path": "p", "format": "tokens", "tier": {"dir": "d", "budget": 1}}, r"a\.tier.*goes with 'store'"),
    ({"path": "p", "format": "tokens", "io": {}}, r"a\.io.*goes with 'store'"),
    ({"path": "p", "format": "tokens", "shuffle": "row_groups"}, r"a\.shuffle.*a 'store' of Parquet files"),
    ({"store": "s", "shuffle": "row_groups", "shuffle_groups": 0}, r"a\.shuffle_groups"),
    ({"store": "s", "tier": {"dir": "d"}}, r"a\.tier\.budget"),
    ({"store": "s", "tier": {"dir": "d", "budget": 1, "hole": True}}, r"a\.tier\.hole.*whole"),
    ({"store": "s", "io": {"memory": "1GiB", "deadline": 0}}, r"a\.io\.deadline"),
])  # fmt: skip
def test_a_mistake_is_told_at_its_key(source: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(config(**source))
