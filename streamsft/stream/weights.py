"""What a mix weighs its children by: numbers, or schedules over training steps."""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from streamsft.errors import ConfigError

__all__ = ["Weight", "WeightSchedule", "WeightTree", "check_weights", "normalized", "rounded_share"]


@final
@dataclass(frozen=True, slots=True)
class WeightSchedule:
    """A weight that changes with the training step.

    Attributes:
        points: (step, weight) pairs, steps ascending. Before the first and behind the last the weight is theirs.
        hold: between two points, keep the earlier one's weight instead of going over to the later one's linearly.
    """

    points: tuple[tuple[int, float], ...]
    hold: bool = False

    def at(self, step: int) -> float:
        """The weight at a step."""
        after = bisect_right(self.points, step, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        step_before, before = self.points[after - 1]
        if self.hold or after == len(self.points):
            return before
        step_after, weight_after = self.points[after]
        return before + (weight_after - before) * ((step - step_before) / (step_after - step_before))

    def to_json(self) -> list[Any]:
        """The schedule as a fingerprint holds it."""
        return [[list(point) for point in self.points], "hold" if self.hold else "linear"]


Weight: TypeAlias = "float | WeightSchedule"


def parsed(weight: Any, where: str) -> Weight:
    """A number, or a mapping from steps to numbers (with ``hold: true`` if they are not to be connected).

    Raises:
        ConfigError: neither, or a number is negative or not finite.
    """
    if isinstance(weight, WeightSchedule):
        return weight
    if not isinstance(weight, Mapping):
        return _number(weight, where)
    points = {step: value for step, value in weight.items() if step != "hold"}
    for step in points:
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise ConfigError(f"{where}: {step!r} is not a training step; a schedule maps steps >= 0 to weights")
    if not points:
        raise ConfigError(f"{where}: a schedule without a step; give weights by step, such as {{0: 1.0, 1000: 0.2}}")
    hold = weight.get("hold", False)
    if not isinstance(hold, bool):
        raise ConfigError(f"{where}: hold is {hold!r}; give true or false")
    return WeightSchedule(tuple(sorted((step, _number(value, where)) for step, value in points.items())), hold)


def _number(weight: Any, where: str) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float | np.integer | np.floating):
        raise ConfigError(f"{where} is {weight!r}; give a number >= 0")
    if not 0 <= weight <= sys.float_info.max:
        raise ConfigError(f"{where} is {weight!r}; give a finite number >= 0")
    return float(weight)


def ever_drawn(weight: Weight) -> bool:
    """Whether the weight is above 0 at some step."""
    return weight > 0 if isinstance(weight, float) else any(value > 0 for _, value in weight.points)


def check_weights(weights: Mapping[str, Any], where: str = "mix") -> dict[str, Weight] | None:
    """Check the weights of one mix node before anything is opened; None if there are none.

    Raises:
        ConfigError: a weight is wrong; some are given and some are not; or at some step none is above 0.
    """
    given = {
        name: parsed(weight, f"{where}: weight of {name!r}") for name, weight in weights.items() if weight is not None
    }
    if given and len(given) < len(weights):
        missing = ", ".join(repr(name) for name in weights if name not in given)
        raise ConfigError(f"{where}: {missing} without a weight beside sources that have one; give all or none")
    steps = {0} | {step for weight in given.values() if isinstance(weight, WeightSchedule) for step, _ in weight.points}
    for step in sorted(steps) if given else ():
        if not any(value_at(weight, step) for weight in given.values()):
            when = f" at step {step}" if len(steps) > 1 else ""
            raise ConfigError(f"{where}: every weight is 0{when}, so nothing could be drawn; give one above 0")
    return given or None


def value_at(weight: Weight, step: int) -> float:
    """The weight at a step, a number being the same at each."""
    return weight if isinstance(weight, float) else weight.at(step)


def normalized(weights: Sequence[float]) -> list[float]:
    """Scale weights to shares that sum to 1; the same floats whatever the order of the list.

    Raises:
        ConfigError: one is so small beside the others that nothing is left of it.
    """
    _, exponent = math.frexp(max(weights))
    scaled = [math.ldexp(weight, -exponent) for weight in weights]  # so that the sum of huge ones is finite
    total = math.fsum(scaled)
    shares = [weight / total for weight in scaled]
    if lost := [weight for weight, share in zip(weights, shares, strict=True) if weight and not share]:
        raise ConfigError(f"weight {lost[0]:g} is nothing beside {max(weights):g}: raise it, or set it to 0")
    return shares


def rounded_share(share: float) -> float:
    """The share to ten digits, which is what a mix is drawn by: short in a state, and off by one draw in 2 * 10**9."""
    return float(f"{share:.10g}")


@final
@dataclass(frozen=True, slots=True)
class WeightTree:
    """A mix as far as its weights go: a source by its name, or a node with weighted children."""

    name: str
    children: tuple[tuple[WeightTree, Weight], ...] = ()

    def shares(self, step: int) -> dict[str, float]:
        """The part of all draws that each source gets at a step; nested weights multiply."""
        return {name: rounded_share(share) for name, share in self._shares(step, 1.0)}

    def _shares(self, step: int, share: float) -> Iterator[tuple[str, float]]:
        if not self.children:
            yield self.name, share
            return
        parts = normalized([value_at(weight, step) for _, weight in self.children])
        for (child, _), part in zip(self.children, parts, strict=True):
            yield from child._shares(step, share * part)

    @property
    def scheduled(self) -> bool:
        """Whether a weight changes with the step."""
        return any(isinstance(weight, WeightSchedule) or child.scheduled for child, weight in self.children)

    def schedules(self) -> dict[str, Any]:
        """The schedules below, by the name of the child, as a fingerprint holds them."""
        found: dict[str, Any] = {}
        for child, weight in self.children:
            found |= child.schedules()
            if isinstance(weight, WeightSchedule):
                found[child.name] = weight.to_json()
        return found
