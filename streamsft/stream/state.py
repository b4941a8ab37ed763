"""What a stream's state says about the stream it belongs to, and how a wrong one is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamsft.errors import StateError
from streamsft.stream.plan import Plan

__all__ = ["STATE_VERSION", "check_state", "describe_plan", "differences"]

STATE_VERSION = 1
"""Raised when the meaning of a state, or the order of a stream, changes."""

_DIGEST = 12  # hex digits of a source's fingerprint kept in state: 48 bits tell changed contents apart


def describe_plan(plan: Plan) -> dict[str, Any]:
    """What defines the order of a plan, as JSON: a state is loaded only where this is the same."""
    sources: dict[str, list[Any]] = {}
    for leaf in plan.leaves:
        entry: list[Any] = [leaf.source.fingerprint[:_DIGEST], leaf.share]
        sources[leaf.name] = entry if leaf.shuffle else [*entry, "none"]
    packing: Mapping[str, Any] = plan.packing.describe() if plan.packing else {"window": plan.draws}
    mixed: dict[str, Any] = {"unit": plan.mixture.unit}
    if plan.scheduled:
        mixed["schedules"] = plan.mixture.weights.schedules()
    return {"seed": plan.seed, **packing, **mixed, "sources": sources}


def flattened(value: Any, path: str = "") -> dict[str, Any]:
    """Leaves of a fingerprint by dotted path, each source's entry under a name that says what it is."""
    if path.startswith("sources.") and isinstance(value, list):
        names = ("contents", "share", "shuffle")
        return {f"{path}.{name}": part for name, part in zip(names, value, strict=False)}
    if isinstance(value, Mapping):
        result: dict[str, Any] = {}
        for key, part in value.items():
            result |= flattened(part, f"{path}.{key}" if path else str(key))
        return result
    return {path: value}


def differences(theirs: Any, ours: Any) -> list[str]:
    """One line per key on which two fingerprints differ, with both values; empty where they agree."""
    left, right = flattened(theirs), flattened(ours)
    absent = "absent"
    return [
        f"{key}: {left.get(key, absent)!r} in the state, {right.get(key, absent)!r} here"
        for key in sorted(left.keys() | right.keys())
        if left.get(key, absent) != right.get(key, absent)
    ]


def check_state(state: Any, fields: Sequence[str], fingerprint: Mapping[str, Any]) -> None:
    """Refuse a state that another version wrote, that lacks a field, or that belongs to another stream.

    Raises:
        StateError: with every difference, both values each.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"not the state of a stream: {type(state).__name__} instead of a JSON object")
    if state.get("version") != STATE_VERSION:
        raise StateError(
            f"state of version {state.get('version')!r}; this streamsft reads version {STATE_VERSION}: "
            "resume with the release that wrote it"
        )
    missing = [name for name in fields if name not in state]
    if missing:
        raise StateError(f"state without {', '.join(missing)}: it is incomplete")
    found = differences(state["fingerprint"], fingerprint)
    if found:
        raise StateError("the state belongs to another stream:\n  " + "\n  ".join(found))
