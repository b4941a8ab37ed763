"""The two sides of a hold-out: every row on one of them, under its own number."""

from __future__ import annotations

import pickle

from streamsft.sources.hub import ListRows
from streamsft.sources.rawrows import BadRow, iterate_rows
from streamsft.text.holdout import HELD_OUT, HoldOut
from streamsft.text.sides import NOT_HELD, Side

ROWS = [{"text": str(number // 2)} for number in range(60)]


def marks(side: Side) -> list[str]:
    return [row.value.reason if isinstance(row.value, BadRow) else "" for _, _, row in iterate_rows(side)]


def both(holdout: HoldOut) -> tuple[Side, Side]:
    reader = ListRows(ROWS)
    return Side(reader, holdout, held=False, where="here"), Side(reader, holdout, held=True, where="here")


def test_each_row_is_on_one_side_and_copies_are_on_the_same() -> None:
    for holdout in (HoldOut(fraction=0.3), HoldOut(rows=7)):
        kept, held = map(marks, both(holdout))
        assert len(kept) == len(held) == len(ROWS)
        assert all({one, other} in ({"", NOT_HELD}, {HELD_OUT, ""}) for one, other in zip(kept, held, strict=True))
        assert kept[::2] == kept[1::2]
    assert held.count("") == 8  # the row of the seventh smallest hash, and its copy


def test_the_sides_have_keys_of_their_own_and_their_chunks_can_be_sent() -> None:
    sides = [*both(HoldOut(fraction=0.3)), *both(HoldOut(rows=7))]
    assert len({str(side.content_key()) for side in sides}) == 4
    chunk = next(sides[0].chunks())
    assert pickle.loads(pickle.dumps(chunk)).rows() == chunk.rows()
