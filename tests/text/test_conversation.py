"""Rejections and conversations as values."""

from __future__ import annotations

import pickle

import pytest

from streamsft.text.conversation import REASONS, Conversation, RowRejected


def test_a_rejection_fits_into_one_line_of_any_file() -> None:
    rejected = RowRejected("bad_role", "role 'a\n\ud800' " + "x" * 10_000)
    assert "\n" not in rejected.detail
    assert len(rejected.detail) < 500
    assert rejected.detail.encode("utf-8")
    assert str(rejected).startswith("bad_role: role 'a \\ud800'")


def test_a_rejection_survives_the_way_back_from_a_worker() -> None:
    rejected = pickle.loads(pickle.dumps(RowRejected("bad_row", "line 3")))
    assert (rejected.reason, rejected.detail) == ("bad_row", "line 3")


def test_reasons_cannot_be_invented_or_changed() -> None:
    with pytest.raises(AssertionError):
        RowRejected("no_reason", "x")
    with pytest.raises(TypeError):
        REASONS["x"] = "y"  # type: ignore[index]


def test_messages_without_flags_have_none() -> None:
    assert Conversation([{"role": "user", "content": "q"}] * 2).supervise == [None, None]
