"""What holds for every engine, whoever writes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from streamsft.engine import Engine
from streamsft.errors import DataError
from streamsft.sources import jsontext
from streamsft.text.tokenizing import tokenize

Pairs = Iterator[tuple[Any, Any]]


class Losing(Engine):
    """Does all items, and gives some of what it has."""

    def __init__(self, given: Callable[[Pairs], Pairs]) -> None:
        super().__init__()
        self._given = given

    def _map(self, job: Any, items: Iterator[Any], *, what: str) -> Pairs:
        return self._given((item, job.run(item)) for item in items)

    def close(self) -> None:
        """Nothing is left."""


def first_three(pairs: Pairs) -> Pairs:
    return islice(pairs, 3)


def without_the_last(pairs: Pairs) -> Pairs:
    return iter(list(pairs)[:-1])


def nothing(pairs: Pairs) -> Pairs:
    return iter(())


def the_first_twice(pairs: Pairs) -> Pairs:
    first = next(pairs)
    return chain([first, first], pairs)


@pytest.mark.parametrize("given", [first_three, without_the_last, nothing, the_first_twice])
def test_a_store_that_lacks_what_an_engine_lost_is_not_published(
    given: Callable[[Pairs], Pairs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsontext, "CHUNK_BYTES", 64)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(100)))
    with pytest.raises(DataError, match=r"source rows: Losing gave \d+ results for (\d+|more) items; nothing is kept"):
        tokenize(
            file,
            name="rows",
            transform=lambda row: {"input_ids": [row["n"]] * 2, "loss_mask": [0, 1]},
            cache_dir=tmp_path / "cache",
            engine=Losing(given),
        )
    assert not list((tmp_path / "cache" / "stores").glob("*"))
