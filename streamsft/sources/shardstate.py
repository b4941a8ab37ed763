"""The state of a `datasets` pipeline as a few numbers.

A pipeline's own state is a tree of dicts that names every stage, several hundred bytes long. All of it but a few
numbers is as in a pipeline that has not begun: only what differs is kept, by its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamsft.errors import StateError

__all__ = ["packed", "unpacked"]


def packed(state: Any, fresh: Any) -> Any:
    """What `state` says beyond `fresh`, the state of the same pipeline before its first row, as JSON."""
    return _packed(state, fresh, list(_trees(fresh)))


def unpacked(difference: Any, fresh: Any) -> Any:
    """The state that `packed` made `difference` of.

    Raises:
        StateError: it was made of another pipeline.
    """
    try:
        return _unpacked(difference, fresh, list(_trees(fresh)))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise StateError(f"{difference!r} is no position in this dataset: it was taken of another pipeline") from error


def _packed(state: Any, like: Any, trees: list[dict[str, Any]]) -> Any:
    """A list of [place, difference] pairs for a tree that is like a known one; a value in ``{"is": …}`` otherwise."""
    if isinstance(like, list) and isinstance(state, list) and len(like) == len(state):
        like, state = dict(enumerate(like)), dict(enumerate(state))
    if isinstance(like, dict) and isinstance(state, dict) and like.keys() == state.keys():
        keys = enumerate(sorted(like))
        return [[place, _packed(state[key], like[key], trees)] for place, key in keys if state[key] != like[key]]
    if isinstance(state, dict):  # such as a stage's earlier state, kept beside its present one
        for number, tree in enumerate(trees):
            if tree.keys() == state.keys() and tree.get("type") == state.get("type"):
                return {"like": number, "but": _packed(state, tree, trees)}
    return state if isinstance(state, int | float | str | None) else {"is": state}


def _unpacked(difference: Any, like: Any, trees: list[dict[str, Any]]) -> Any:
    if isinstance(difference, list):
        keys = list(range(len(like))) if isinstance(like, list) else sorted(like)
        state = like.copy()
        for place, inner in difference:
            state[keys[place]] = _unpacked(inner, like[keys[place]], trees)
        return state
    if isinstance(difference, dict):
        if "is" in difference:
            return difference["is"]
        return _unpacked(difference["but"], trees[difference["like"]], trees)
    return difference


def _trees(state: Any) -> Iterator[dict[str, Any]]:
    """All dicts in a state, in a fixed order."""
    if isinstance(state, dict):
        yield state
        for key in sorted(state):
            yield from _trees(state[key])
    elif isinstance(state, list):
        for inner in state:
            yield from _trees(inner)
