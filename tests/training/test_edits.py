"""What is noted of an edit of the mix."""

from __future__ import annotations

from streamsft.training.edits import describe_edit, edit_record, saved_mixes


def test_an_edit_is_noted_by_what_changed() -> None:
    before = {"sources": {"a": ["11", 0.5], "b": ["22", 0.5], "d": ["44", 0.0, "none"], "e": ["55", 0.0, "none"]}}
    after = {
        "sources": {"a": ["11", 0.25], "c": ["33", 0.75], "d": ["45", 0.0, "none"], "e": ["55", 0.0]},
        "schedules": {"c": [[[0, 1]]]},
    }
    edit = edit_record(100, before, after)
    assert edit == {
        "step": 100,
        "added": ["c"],
        "removed": ["b"],
        "changed": ["d", "e"],
        "orders": {"e": ["none", "whole passes"]},
        "shares": {"a": [0.5, 0.25], "b": [0.5, None], "c": [None, 0.75]},
        "schedules": {"c": [[[0, 1]]]},
    }
    assert describe_edit(edit) == (
        "the mix is edited behind step 100: added c; removed b; changed d, e; shuffle of e: none -> whole passes; "
        "a 0.5 -> 0.25; b 0.5 -> none; c none -> 0.75"
    )


def test_the_mix_before_is_kept_while_a_window_of_it_is_open() -> None:
    new, old = {"name": "new"}, {"name": "old"}
    open_state = {"lanes": {"0": [0, 1, [5, 7], {"before_edit": True}], "1": [0, 1, [5, 7]]}}
    assert saved_mixes(open_state, new, old) == {"mix": new, "before": old}
    assert saved_mixes({"lanes": {"0": [1, 0, [5, 7]], "1": [1, 0, [5, 7]]}}, new, old) == {"mix": new, "before": None}
