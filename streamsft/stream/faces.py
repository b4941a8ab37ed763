"""`InfiniteDataset`: the base of the endless stages, thin faces over the numpy core."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from torch.utils.data import IterableDataset

from streamsft.comm import worker_shard
from streamsft.errors import ConfigError, StateError
from streamsft.stream.documents import Documents
from streamsft.stream.info import Info
from streamsft.stream.lane import Lane
from streamsft.stream.lanestate import LaneState
from streamsft.stream.plan import Plan
from streamsft.stream.state import STATE_VERSION, check_state, describe_plan
from streamsft.types import Shard

__all__ = ["InfiniteDataset", "Info", "LaneDataset", "whole"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_READ_AHEAD = 64  # documents that a face reads at a time


class InfiniteDataset(IterableDataset[T_co], ABC, Generic[T_co]):
    """A stage that never ends and can be stopped and resumed between any two items.

    Inside a `torch.utils.data.DataLoader` each worker takes an equal part of the stage's `shard`. Iterating
    again goes on where the last iteration stopped, and ends the last iteration.
    """

    def __init__(self, shard: Shard) -> None:
        super().__init__()
        self.shard = shard
        self._loaded: Mapping[str, Any] | None = None
        self._begun: Shard | None = None
        self._iterations = 0

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the stage."""

    @property
    @abstractmethod
    def info(self) -> Info:
        """Name, weight and children; printed, it is the pipeline tree."""

    @property
    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What defines the stream, as JSON: a state is loaded only where this is the same."""

    @abstractmethod
    def _begin(self, shard: Shard, position: Mapping[str, Any] | None) -> None:
        """Stand at `position` of `shard`; None is the start."""

    @abstractmethod
    def _position(self) -> dict[str, Any]:
        """Where the stage stands, as JSON."""

    @abstractmethod
    def _items(self) -> Iterator[T_co]:
        """The items from here on. An item counts as given out before it is yielded."""

    def __iter__(self) -> Iterator[T_co]:
        self._iterations += 1
        return self._given_out(self._iterations)

    def _given_out(self, iteration: int) -> Iterator[T_co]:
        self._ready()
        items = self._items()
        while True:
            if iteration != self._iterations:
                raise StateError(f"{self.name}: another iteration began, so this one has ended; iterate once at a time")
            yield next(items)

    def _ready(self) -> None:
        """Begin on first use, at the loaded state if there is one."""
        shard = worker_shard(self.shard)
        if self._begun == shard:
            return
        if self._begun is not None:
            raise StateError(
                f"{self.name}: was iterated as {self._begun} before it came to this loader worker, which reads "
                f"{shard}; give a DataLoader a fresh stage"
            )
        position = None
        if self._loaded is not None:
            check_state(self._loaded, ("fingerprint", "shard", "position"), self.fingerprint)
            if self._loaded["shard"] != [shard.index, shard.count]:
                raise StateError(
                    f"{self.name}: the state is of shard {self._loaded['shard'][0]} of {self._loaded['shard'][1]}, "
                    f"this is shard {shard.index} of {shard.count}; ranks times workers must stay the same here "
                    "(Loader is free of that)"
                )
            position = self._loaded["position"]
        self._begin(shard, position)
        self._begun = shard

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands behind the last item given out: a small JSON object."""
        if self._begun is None and self._loaded is not None:
            return dict(self._loaded)
        self._ready()
        shard = self._begun
        assert shard is not None
        state = {
            "version": STATE_VERSION,
            "fingerprint": self.fingerprint,
            "shard": [shard.index, shard.count],
            "position": self._position(),
        }
        if not self._iterations:
            self._begun = None  # so that it can still become part of another shard, or load a state
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            StateError: iteration has begun, or the state belongs to another stream, shard or version.
        """
        if self._iterations:
            raise StateError(f"{self.name}: state loaded after iteration began; load it into a fresh stage")
        check_state(state, ("fingerprint", "shard", "position"), self.fingerprint)
        self._loaded = state


Stage = TypeVar("Stage", bound=InfiniteDataset[Any])


def whole(stage: Stage, where: str) -> Stage:
    """The stage, if its shard is the whole stream: what is made of it is divided as a whole.

    Raises:
        ConfigError: the stage was given a part.
    """
    if stage.shard != Shard():
        raise ConfigError(
            f"{where}: {stage.name!r} has {stage.shard}; leave it whole, and give the shard to the last stage"
        )
    return stage


class LaneDataset(InfiniteDataset[T], Generic[T]):
    """A stage whose items are the packs of one lane of a plan; shard i of n is lane i of n."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard)
        self._lane: Lane | None = None

    @abstractmethod
    def plan(self, lanes: int = 1) -> Plan:
        """The plan of this stage for that many lanes."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        return describe_plan(self.plan() if self._lane is None else self._lane.plan)

    def _begin(self, shard: Shard, position: Mapping[str, Any] | None) -> None:
        plan = self.plan(shard.count)
        if plan.scheduled:
            raise ConfigError(f"{self.name}: weights by step need a Loader, which counts steps")
        state = None if position is None else LaneState.from_json(position.get("lane"), plan, self.name)
        self._lane = Lane(plan, shard.index, state)

    def _position(self) -> dict[str, Any]:
        assert self._lane is not None
        return {"lane": self._lane.state.to_json()}

    def _items(self) -> Iterator[T]:
        lane = self._lane
        assert lane is not None
        while True:
            documents, packs = lane.rest()
            lane.announce()
            for first in range(0, packs, _READ_AHEAD):
                last = min(first + _READ_AHEAD, packs)
                for item in self._made(lane, documents.packs(first, last), last - first):
                    lane.advance(1)
                    yield item

    @abstractmethod
    def _made(self, lane: Lane, documents: Documents, packs: int) -> list[T]:
        """The items of `packs` packs."""
