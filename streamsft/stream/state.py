"""What a stream's state says about the stream it belongs to, and how a wrong one is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from streamsft.errors import StateError
from streamsft.stream.plan import Plan
from streamsft.types import is_count

__all__ = [
    "STATE_VERSION",
    "Difference",
    "begun_before_edit",
    "check_edit",
    "check_shape",
    "check_state",
    "checked_edits",
    "checked_lanes",
    "checked_step",
    "describe_plan",
    "differences",
    "differing",
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


_KEYS = {
    "lookahead": "packing.lookahead",
    "overflow": "packing.overflow",
    "align": "packing.align",
    "unit": "mix.unit",
    "lanes": "loader.lanes_per_step and lane_groups",
    "tokenizer": "tokenizer, by a digest of it",
}
"""What the parts of a fingerprint are called in a config, where that is something else."""

_SOURCE = {
    "contents": "{path}, by a digest of its contents",
    "share": "{path}.weight, as a share of all draws",
    "shuffle": "{path}.shuffle",
    "shuffle_window": "{path}.shuffle_window",
    "block_bytes": "{path}: bytes of a block",
    "streaming": "{path}.streaming",
    "overflow": "{path}.overflow",
    "schedule": "{path}.weight, by step",
}
_DEFAULTS = {"align": 1}
"""What parts of a fingerprint are that it leaves out."""
_WHILE_STREAMING = ("shuffle_window", "block_bytes")
"""What a source alone has that streams: not told where it does not in both."""
_BLOCKS = re.compile(r"(?:(none), )?blocks of (\d+) rows, (\d+) bytes")
_ABSENT = "absent"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A part of two fingerprints that is not the same in both.

    Attributes:
        part: its name in a fingerprint; of a source's part ``contents``, ``share``, ``schedule``, or what its order
            and its cuts depend on, and ``presence`` where the source is in one alone.
        source: the source or mix node that it is about, "" if it is about none.
        theirs: its value in the state, ``absent`` where there is none.
        ours: its value here.
    """

    part: str
    source: str
    theirs: Any
    ours: Any

    def line(self, path: str | None = None) -> str:
        """The difference as the user's config has it; `path` leads to the source there."""
        path = path or f"mix.sources.{self.source}"
        if self.part == "presence":
            return f"{path}: " + ("here, not in the state" if self.theirs == _ABSENT else "in the state, not here")
        key = _SOURCE[self.part].format(path=path) if self.source else _KEYS.get(self.part, self.part)
        hint = "; give those of the state, and a loader.global_batch_size that lanes_per_step divides"
        return f"{key}: {self.theirs!r} in the state, {self.ours!r} here{hint if self.part == 'lanes' else ''}"


def differing(theirs: Any, ours: Any) -> list[Difference]:
    """Every part on which two fingerprints differ."""
    left, right = _flattened(theirs), _flattened(ours)
    lone = {source for source, part in left.keys() ^ right.keys() if part == "presence"}
    return [
        Difference(
            part=part, source=source, theirs=left.get((source, part), _ABSENT), ours=right.get((source, part), _ABSENT)
        )
        for source, part in sorted(left.keys() | right.keys())
        if left.get((source, part), _ABSENT) != right.get((source, part), _ABSENT)
        and (source not in lone or part == "presence")
        and (part not in _WHILE_STREAMING or {(source, part)} <= left.keys() & right.keys())
    ]


def differences(theirs: Any, ours: Any) -> list[str]:
    """One line per key on which two fingerprints differ, with both values; empty where they agree."""
    return [] if theirs == ours else [difference.line() for difference in differing(theirs, ours)]


def _flattened(value: Any) -> dict[tuple[str, str], Any]:
    """The parts of a fingerprint by (source or "", name)."""
    if not isinstance(value, Mapping):
        return {("", "state"): value}
    whole = {**_DEFAULTS, **value}
    parts = {("", str(key)): part for key, part in whole.items() if key not in ("sources", "schedules")}
    sources = value.get("sources")
    for name, entry in sources.items() if isinstance(sources, Mapping) else ():
        values = entry if isinstance(entry, list) else [entry]
        parts |= {(name, aspect): part for aspect, part in zip(("contents", "share"), values, strict=False)}
        parts |= {(name, aspect): part for aspect, part in _order_of(str((*values, "", "", "")[2])).items()}
        parts[name, "presence"] = True
    schedules = value.get("schedules")
    for name, points in schedules.items() if isinstance(schedules, Mapping) else ():
        parts[name, "schedule"] = points
    return parts


def _order_of(text: str) -> dict[str, Any]:
    """What `Leaf.order` says, by the names of a config."""
    shuffled, _, overflow = text.rpartition("overflow: ") if "overflow: " in text else (text, "", "")
    parts: dict[str, Any] = {"overflow": overflow or "as packing.overflow", "streaming": False}
    if blocks := _BLOCKS.fullmatch(shuffled := shuffled.removesuffix("; ")):
        streaming = {"streaming": True, "shuffle_window": int(blocks[2]), "block_bytes": int(blocks[3])}
        return parts | streaming | {"shuffle": blocks[1] or "rows"}
    return parts | {"shuffle": shuffled or "rows"}


def check_state(
    state: Any, fields: Sequence[str], fingerprint: Mapping[str, Any], optional: Sequence[str] = ()
) -> None:
    """Refuse a state that another version wrote, that lacks a field or has an unknown one, or that belongs to another
    stream.

    Raises:
        StateError: with every difference, both values each.
    """
    check_shape(state, fields, optional)
    if found := differences(state["fingerprint"], fingerprint):
        raise StateError("the state belongs to another stream:\n  " + "\n  ".join(found))


def check_shape(state: Any, fields: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Refuse what is no state, or one that another version wrote, or that lacks a field or has an unknown one.

    Raises:
        StateError: says what it is instead.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"not the state of a stream: {type(state).__name__} instead of a JSON object")
    if "version" not in state:
        held = f"it holds {', '.join(map(str, list(state)[:5]))}" if state else "it is empty"
        raise StateError(f"not the state of a stream: {held}; give what state_dict or gather_state returned")
    if state["version"] != STATE_VERSION:
        raise StateError(
            f"state of version {state['version']!r}; this streamsft reads version {STATE_VERSION}: "
            "resume with the release that wrote it"
        )
    missing = [name for name in fields if name not in state]
    if missing:
        raise StateError(f"state without {', '.join(missing)}: it is incomplete")
    if unknown := [key for key in state if key not in ("version", *fields, *optional)]:
        raise StateError(
            f"state with {', '.join(map(repr, unknown))}, unknown here: give what state_dict or gather_state returned, "
            "unchanged"
        )


def check_edit(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse an edit of more than the sources and weights of a mix.

    Raises:
        StateError: with every other difference, both values each.
    """
    found = [difference.line() for difference in differing(before, after) if not difference.source]
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
    if not is_count(step):
        raise StateError(f"the state's step is {step!r}, not a number >= 0 and below 2**62")
    return step


def checked_edits(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The edits of the mix that a state has been through.

    Raises:
        StateError: they are no list of edits.
    """
    edits = state.get("edits", [])
    if not isinstance(edits, list) or not all(map(_is_edit, edits)):
        raise StateError(f"the state's edits are {edits!r}, not a list of edits of the mix")
    return [dict(edit) for edit in edits]


def _is_edit(edit: Any) -> bool:
    return isinstance(edit, Mapping) and edit.keys() == {"step", "before"} and is_count(edit["step"])


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
