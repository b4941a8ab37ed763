"""What a stream's state says about the stream it belongs to, and how a wrong one is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamsft.errors import StateError
from streamsft.stream.plan import Plan

__all__ = [
    "STATE_VERSION",
    "begun_before_edit",
    "check_edit",
    "check_state",
    "checked_lanes",
    "checked_step",
    "describe_plan",
    "differences",
    "is_before_edit",
    "merged",
]

STATE_VERSION = 3
"""Raised when the meaning of a state, or the order of a stream, changes."""

_DIGEST = 12  # hex digits of a source's fingerprint kept in state: 48 bits tell changed contents apart


def describe_plan(plan: Plan) -> dict[str, Any]:
    """What defines the order of a plan, as JSON: a state is loaded only where this is the same."""
    sources: dict[str, list[Any]] = {}
    for leaf in plan.leaves:
        contents, order = leaf.identity
        sources[leaf.name] = [contents[:_DIGEST], leaf.share, *([order] if order else [])]
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


_EDITABLE = ("sources.", "schedules.")


def check_edit(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse an edit of more than the sources and weights of a mix.

    Raises:
        StateError: with every other difference, both values each.
    """
    found = [line for line in differences(before, after) if not line.startswith(_EDITABLE)]
    if found:
        raise StateError("only sources and weights can change in the middle of a stream, not:\n  " + "\n  ".join(found))


def begun_before_edit(lanes: Mapping[str, Any]) -> dict[str, Any]:
    """The lanes of a state, marked as standing under the mix that is being replaced.

    Raises:
        StateError: the edit before this one has not come into force on every lane.
    """
    waiting = [number for number, lane in lanes.items() if is_before_edit(lane)]
    if waiting:
        raise StateError(
            f"the last edit of the mix is not in force on lane {', '.join(waiting)} yet; train on with it until the "
            "open windows are finished, then edit again"
        )
    return {number: _marked(lane) for number, lane in lanes.items()}


def is_before_edit(lane: Any) -> bool:
    """Whether a lane's JSON state stands under the mix that the last edit replaced."""
    return _has_more(lane) and bool(lane[-1].get("before_edit"))


def _has_more(lane: Any) -> bool:
    """Whether a lane says more than where it stands; see `LaneState.to_json`."""
    return isinstance(lane, list) and bool(lane) and isinstance(lane[-1], Mapping)


def _marked(lane: Any) -> Any:
    """The lane as one that stands under the mix before an edit; as it is if it is damaged, to be refused later."""
    if _has_more(lane):
        return [*lane[:-1], {**lane[-1], "before_edit": True}]
    return [*lane, {"before_edit": True}] if isinstance(lane, list) else lane


def checked_step(state: Mapping[str, Any]) -> int:
    """The step of a state.

    Raises:
        StateError: it is no number of steps.
    """
    step = state["step"]
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise StateError(f"the state's step is {step!r}, not a number >= 0")
    return step


def checked_lanes(state: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The lanes of a state, if they are all there.

    Raises:
        StateError: a lane is missing, or there is one too many; names it.
    """
    lanes = state["lanes"]
    if not isinstance(lanes, Mapping):
        raise StateError(f"the state's lanes are {lanes!r}, not an object of lanes by number")
    expected = {str(number) for number in range(count)}
    if missing := sorted(expected - set(lanes), key=int):
        raise StateError(f"the state lacks lane {', '.join(missing)} of {count}: gather it with gather_state")
    if unknown := sorted(set(lanes) - expected):
        raise StateError(f"the state has lane {', '.join(unknown)}, but there are only {count}")
    return dict(lanes)


def merged(parts: Sequence[Mapping[str, Any]], count: int) -> dict[str, Any]:
    """The complete state that the parts of all ranks make, `count` lanes.

    Raises:
        StateError: ranks stand at different steps or in different streams, disagree about a lane, or one is missing.
    """
    first = parts[0]
    lanes: dict[str, Any] = {}
    for rank, part in enumerate(parts):
        if part["step"] != first["step"]:
            raise StateError(f"rank {rank} stands at step {part['step']}, rank 0 at {first['step']}")
        if found := differences(part["fingerprint"], first["fingerprint"]):
            raise StateError(f"rank {rank} reads another stream than rank 0:\n  " + "\n  ".join(found))
        for number, lane in part["lanes"].items():
            if lanes.setdefault(number, lane) != lane:
                raise StateError(f"rank {rank} holds another copy of lane {number} than a rank before it")
    complete = checked_lanes({"lanes": lanes}, count)
    return {**first, "lanes": {number: complete[number] for number in sorted(complete, key=int)}}
