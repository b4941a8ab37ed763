"""The order of a source that is read by row groups: each group by one lane and once per pass, rows mixed in blocks.

In each pass the groups are permuted by key and dealt to the lanes in turn. Dealing goes on where the pass before
ended: with M groups and V lanes, group k of pass p goes to lane (p·M + k) mod V, so that lanes go through the data at
the same rate whatever M is. What a lane is dealt in a pass is cut into closed blocks of some groups, and the rows of a
block are permuted by key. Where a lane stands is one number, a *code*: which of its groups its block begins with, and
how many rows of the block it has behind it. Nothing has to be replayed to get there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple, final

import numpy as np

from streamsft.errors import ConfigError, StateError
from streamsft.order.keys import derive_key, hash64
from streamsft.order.permutation import permute
from streamsft.types import Ints

__all__ = ["GroupOrder", "Upcoming"]

_BITS: Final = 31
_ROWS: Final = (1 << _BITS) - 1  # rows of a block, and those that are drawn at a time, stay below this
_FORETOLD: Final = 64  # groups that are looked up at a time: more than most sources fetch ahead
_KEPT: Final = 16  # stretches of groups that are kept, of some kilobytes each


class Upcoming(NamedTuple):
    """A group that a lane is about to read."""

    group: int
    rows_before: int
    """Rows that the lane draws before the first of this group's block; 0 for the block it is in."""


class _Dealt(NamedTuple):
    """Successive groups of a lane, from the start of a block on; int64[groups] each."""

    group: Ints
    pass_index: Ints
    first: Ints
    """Number of the lane's group that the block begins with."""
    start: Ints
    """Rows of these groups before each of them."""
    block_start: Ints
    """Rows of these groups before each one's block."""
    block_rows: Ints
    """Rows of each one's block; of the last block only those that are here."""


@final
class GroupOrder:
    """The order of one source over any number of lanes: a pure function of seed, name and the groups' sizes.

    Args:
        seed: seed of the order.
        name: the source's name.
        bounds: int64[groups + 1], rows that can be drawn before each group, from 0; each group has one at least.
        block: groups of a lane whose rows are mixed.

    Raises:
        ConfigError: a block could hold more rows than can be counted.
    """

    def __init__(self, *, seed: int, name: str, bounds: Ints, block: int) -> None:
        self.bounds = bounds
        self.block = block
        self._sizes = np.diff(bounds)
        self._groups_key = derive_key(seed, name, "groups")
        self._rows_key = derive_key(seed, name, "block")
        self._smallest, self._largest = int(self._sizes.min()), int(self._sizes.max())
        self._kept: OrderedDict[tuple[int, int, int], _Dealt] = OrderedDict()
        if self._largest * block > _ROWS // 2:
            raise ConfigError(
                f"source {name!r}: {block} row groups of up to {self._largest:,} rows are too many rows to mix; "
                "lower shuffle_groups"
            )

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self._sizes)

    def located(self, lane: int, lanes: int, codes: Ints) -> tuple[Ints, Ints]:
        """Passes and rows of draws, int64[k] each; a row is its number among those that can be drawn.

        Args:
            lane: which lane.
            lanes: of how many.
            codes: int64[k]; the draw i behind the one at a code has that code plus i, also beyond the block's end.

        Raises:
            StateError: a code does not come from here.
        """
        passes, rows = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
        first, offset = codes >> _BITS, codes & _ROWS
        for begin in np.unique(first).tolist():
            mine = np.flatnonzero(first == begin)
            dealt = self._dealt(lane, lanes, begin, int(offset[mine].max()))
            at = np.searchsorted(dealt.start, offset[mine], "right") - 1
            block = dealt.block_start[at]
            keys = hash64(self._rows_key, dealt.first[at] * lanes + lane)
            moved = block + permute(offset[mine] - block, dealt.block_rows[at], keys)
            at = np.searchsorted(dealt.start, moved, "right") - 1
            passes[mine] = dealt.pass_index[at]
            rows[mine] = self.bounds[dealt.group[at]] + moved - dealt.start[at]
        return passes, rows

    def settled(self, lane: int, lanes: int, code: int) -> int:
        """The one code for where `code` stands: that of the block which the next draw is in."""
        first, offset = code >> _BITS, code & _ROWS
        dealt = self._dealt(lane, lanes, first, offset)
        at = int(np.searchsorted(dealt.start, offset, "right")) - 1
        return int(dealt.first[at]) << _BITS | offset - int(dealt.block_start[at])

    def pass_of(self, lane: int, lanes: int, code: int) -> int:
        """The pass that a lane is in which stands at the settled `code`."""
        return (lane + (code >> _BITS) * lanes) // self.groups

    def upcoming(self, lane: int, lanes: int, code: int) -> Iterator[Upcoming]:
        """The groups that a lane reads from the settled `code` on, in order, without end."""
        first, offset = code >> _BITS, code & _ROWS
        before = -offset
        while True:
            dealt = self._dealt(lane, lanes, first, 0)
            whole = int(np.searchsorted(dealt.first, dealt.first[-1]))  # the last block may not be all here
            for group, start in zip(dealt.group[:whole].tolist(), dealt.block_start[:whole].tolist(), strict=True):
                yield Upcoming(group, max(0, before + start))
            before += int(dealt.block_start[whole])
            first += whole

    def _dealt(self, lane: int, lanes: int, first: int, offset: int) -> _Dealt:
        """A lane's groups from its number `first` on, whole blocks, as far as the row `offset` behind and beyond.

        The last stretches that were asked for are kept: a block lasts for many windows.
        """
        where = lane, lanes, first
        kept = self._kept.get(where)
        reach = offset
        while kept is None or int(kept.block_start[-1]) <= offset:  # the last block may not be all here
            kept = self._kept[where] = self._looked_up(lane, lanes, first, reach)
            reach += self._largest * self.block
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return kept

    def _looked_up(self, lane: int, lanes: int, first: int, offset: int) -> _Dealt:
        number, start_of_block = self._numbered(lane, lanes, first, offset)
        turn = lane + number * lanes
        pass_index, place = np.divmod(turn, self.groups)
        keys = hash64(self._groups_key, pass_index)
        group = permute(place, self.groups, keys)
        stop = np.cumsum(self._sizes[group])
        start = stop - self._sizes[group]
        blocks, inverse = np.unique(start_of_block, return_inverse=True)
        block_start = start[np.searchsorted(number, blocks)]
        block_rows = np.diff(block_start, append=stop[-1])
        return _Dealt(group, pass_index, start_of_block, start, block_start[inverse], block_rows[inverse])

    def _numbered(self, lane: int, lanes: int, first: int, offset: int) -> tuple[Ints, Ints]:
        """Numbers of a lane's groups from `first` on, and for each that of the one its block begins with."""
        count = min(offset // max(1, self._smallest), 2 * offset // max(1, int(self.bounds[-1]) // self.groups))
        most = min(self.block, -(-self.groups // lanes))  # groups of a block: no more than a lane has in a pass
        number = first + np.arange(count + 2 * most + _FORETOLD)
        pass_index = (lane + number * lanes) // self.groups
        # The lane's first group of that pass: the smallest number with lane + number * lanes >= pass * groups.
        begin = np.maximum(0, -((lane - pass_index * self.groups) // lanes))
        start_of_block = number - (number - begin) % self.block
        if int(start_of_block[0]) != first:
            raise StateError(f"position {first} in the row groups is not where a block begins: the state is damaged")
        return number, start_of_block
