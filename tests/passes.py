"""How far a stage has come for certain: the passes of its sources that lie behind every lane's open window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamsft.stream.faces import LaneDataset
from streamsft.stream.feedstream import FeedStream
from streamsft.stream.lanestate import LaneState
from streamsft.stream.loader import Loader
from streamsft.stream.plan import Plan
from streamsft.stream.sourcestream import SourceStream

__all__ = ["lane_states", "passes_behind"]


def lane_states(stage: Loader | LaneDataset[Any]) -> tuple[Plan, dict[int, LaneState]]:
    """The plan of a stage, and the state of each of its lanes by number."""
    state = stage.state_dict()
    if isinstance(stage, Loader):
        plan = stage.packer.plan(stage.topology.lanes)
        lanes = {int(number): lane for number, lane in state["lanes"].items()}
    else:
        plan = stage.plan(stage.shard.count)
        lanes = {stage.shard.index: state["position"]["lane"]}
    return plan, {number: LaneState.from_json(lane, plan, f"lane {number}") for number, lane in lanes.items()}


def passes_behind(*stages: Any) -> dict[str, int]:
    """Passes of each source that all lanes of the stages together, which are all parts of one stream, are beyond."""
    found: dict[str, list[int]] = {}
    for stage in stages:
        for name, passes in _passes(stage):
            found.setdefault(name, []).append(passes)
    return {name: min(passes) for name, passes in found.items()}


def _passes(stage: Any) -> Sequence[tuple[str, int]]:
    if isinstance(stage, SourceStream) and stage._order is not None:
        shard = stage.shard
        return [(stage.name, stage._order.pass_of(shard.index, shard.count, stage.state_dict()["position"]["drawn"]))]
    if isinstance(stage, SourceStream):
        position = stage.state_dict()["position"]["drawn"] * stage.shard.count + stage.shard.index
        return [(stage.name, position // stage._leaf.rows)]
    if isinstance(stage, FeedStream):
        return [(stage.name, stage.state_dict()["position"]["feed"][0])]
    plan, lanes = lane_states(stage)
    found = []
    for lane, state in lanes.items():
        for at, leaf in enumerate(plan.leaves):
            if leaf.streams:
                found.append((leaf.name, state.feeds[at].pass_index))
            elif at in plan.group_orders.by_leaf:
                found.append((leaf.name, plan.group_orders.by_leaf[at].pass_of(lane, plan.lanes, state.drawn[at])))
            else:
                found.append((leaf.name, (state.drawn[at] * plan.lanes + lane) // leaf.rows))
    return found
