"""How steps are made of lanes, and lanes shared among ranks."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import final, get_args

from streamsft.errors import ConfigError
from streamsft.stream.balance import Balance
from streamsft.types import Shard

__all__ = ["Topology"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How steps are made of lanes, and lanes shared among ranks.

    Attributes:
        global_batch_size: packs per step over all ranks.
        dp: which data-parallel rank of how many.
        lanes_per_step: lanes that one step draws from.
        lane_groups: groups of lanes that take turns, a step each.
        balance: what is evened out over ranks, which then get packs from anywhere in a step, and plan all of it.

    Raises:
        ConfigError: the global batch cannot be divided; the message has the values that can.
    """

    global_batch_size: int
    dp: Shard
    lanes_per_step: int = 1
    lane_groups: int = 1
    balance: Balance = "none"

    def __post_init__(self) -> None:
        if not isinstance(self.dp, Shard):
            raise ConfigError(f"dp: {self.dp!r} is no Shard; give Shard(rank, ranks)")
        for name in ("global_batch_size", "lanes_per_step", "lane_groups"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"loader.{name}: {value!r} is not an integer of at least 1")
        if self.balance not in get_args(Balance):
            raise ConfigError(f"loader.balance: {self.balance!r} is none of {', '.join(get_args(Balance))}")
        for name, value in (("dp size", self.dp.count), ("loader.lanes_per_step", self.lanes_per_step)):
            if self.global_batch_size % value:
                allowed = [n for n in range(1, self.global_batch_size + 1) if self.global_batch_size % n == 0]
                raise ConfigError(
                    f"{name} {value} does not divide loader.global_batch_size {self.global_batch_size}; "
                    f"it may be one of {', '.join(map(str, allowed))}"
                )

    def __str__(self) -> str:
        """What a rank has of a step, in words."""
        dp = self.dp
        even = "" if self.balance == "none" else f", {self.balance} even"
        return f"{self.global_batch_size} packs per step, rank {dp.index} of {dp.count} takes {self.packs}{even}"

    def check_owners(self, workers: int) -> None:
        """Refuse a topology in which two processes would read the same lane, for sources that are dealt to lanes.

        Raises:
            ConfigError: with the values that are possible.
        """
        for name, value, of, total in (
            ("dp size", self.dp.count, "lanes_per_step", self.lanes_per_step),
            ("loader.workers", max(workers, 1), "lane_groups", self.lane_groups),
        ):
            if total % value:
                allowed = [n for n in range(1, total + 1) if total % n == 0]
                raise ConfigError(
                    f"{name} {value} does not divide loader.{of} {total}, and one process reads each lane of a source "
                    f"that streams or is shuffled by row groups; it may be one of {', '.join(map(str, allowed))}"
                )

    @classmethod
    def of(
        cls,
        global_batch_size: int,
        dp: Shard,
        lanes_per_step: int | None = None,
        lane_groups: int | None = None,
        balance: Balance = "none",
        *,
        owned: bool,
    ) -> Topology:
        """The topology asked for, with the defaults of a mix of which one process owns each lane, or of any other.

        Raises:
            ConfigError: a value is out of range, the global batch cannot be divided, or packs are to be balanced that
                one rank alone can plan.
        """
        if owned and balance != "none":
            raise ConfigError(
                f"loader.balance: {balance} has every rank plan all packs of a step, and each lane of a source that "
                "streams or is shuffled by row groups is read by one process; set balance: none, or read all sources "
                "by index"
            )
        usual = (1, 1)
        if owned and isinstance(global_batch_size, int):
            usual = math.gcd(global_batch_size, 8), 4
        return cls(
            global_batch_size=global_batch_size,
            dp=dp,
            lanes_per_step=usual[0] if lanes_per_step is None else lanes_per_step,
            lane_groups=usual[1] if lane_groups is None else lane_groups,
            balance=balance,
        )

    @property
    def lanes(self) -> int:
        return self.lanes_per_step * self.lane_groups

    @property
    def packs(self) -> int:
        """Packs per step on this rank."""
        return self.global_batch_size // self.dp.count

    @property
    def balanced(self) -> bool:
        """Whether which packs are this rank's follows from what they cost."""
        return self.balance != "none" and self.dp.count > 1

    def group(self, step: int) -> range:
        """The lanes that `step` draws from, in order."""
        first = step % self.lane_groups * self.lanes_per_step
        return range(first, first + self.lanes_per_step)

    def share(self, place: int) -> tuple[int, int]:
        """Which packs (start, stop) of the `place`-th lane of a step this rank plans; empty where start >= stop.

        They are its own, unless packs are balanced.
        """
        per_lane = self.global_batch_size // self.lanes_per_step
        if self.balanced:
            return 0, per_lane
        first = self.dp.index * self.packs - place * per_lane
        return max(first, 0), min(first + self.packs, per_lane)

    @property
    def owned(self) -> list[int]:
        """The lanes that this rank plans, ascending."""
        places = [place for place in range(self.lanes_per_step) if operator.lt(*self.share(place))]
        return [group * self.lanes_per_step + place for group in range(self.lane_groups) for place in places]
