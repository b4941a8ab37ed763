"""`Interleave`: draws from sources, or from other interleaves, by weight."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final, get_args

from streamsft.errors import ConfigError
from streamsft.sources.base import Source, is_source, missing_members
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.documents import Documents
from streamsft.stream.draws import Unit
from streamsft.stream.faces import InfiniteDataset, Info, LaneDataset, whole
from streamsft.stream.lane import Lane
from streamsft.stream.mixture import Leaf, Mixture, usable_rows
from streamsft.stream.packing import Packing
from streamsft.stream.plan import Plan
from streamsft.stream.reading import samples
from streamsft.stream.sourcestream import SourceStream
from streamsft.stream.weights import Weight, WeightSchedule, WeightTree, check_weights, ever_drawn
from streamsft.types import Ints, Sample, Shard, check_name

__all__ = ["Child", "Interleave"]

logger = logging.getLogger(__name__)

_WINDOW = 1024


@dataclass(frozen=True, slots=True)
class _Rows:
    """What can be drawn of a source."""

    usable: Ints | None
    dropped: dict[str, int]
    count: int


Child: TypeAlias = "Source | StreamingSource | SourceStream | Interleave"


@final
class Interleave(LaneDataset[Sample]):
    """An endless stream of samples drawn from several sources by weight.

    Weights count *draws of samples* at the level where the mix sits: 2 beside 1 draws two samples for one,
    however long they are; with ``unit="tokens"`` they count tokens as packed. At every window border a source is
    within ``2 + 2 * share * sqrt(sources)`` draws of its share. Passes of a source follow each other without end.

    Args:
        children: sources (anything with the members of `Source`), streams made by ``source.stream(...)`` for their
            ``shuffle``, or other interleaves. Names are unique over the whole tree.
        weights: one per child, >= 0, any scale; a mapping from steps to weights is a schedule (linear between its
            steps, or constant with a key ``hold: True``), which needs a `Loader`. None draws in proportion to
            rows, so that each row comes equally often. A child of weight 0 is never drawn and never opened.
            Nested weights multiply.
        unit: what weights count, ``samples`` or ``tokens``; nested mixes take the outermost one's.
        name: name of this mix in metrics.
        seed: seed of every random choice below; nested mixes take the outermost one's.
        window: draws that are shuffled together when the mix is iterated by itself; a `Packer` has its own.
        shard: which of several disjoint parts to iterate.

    Raises:
        ConfigError: a weight is wrong, a name stands twice, or a child does not promise to be endless or is
            only a part of its stream.
    """

    def __init__(
        self,
        children: Sequence[Child],
        weights: Sequence[float | Mapping[Any, Any] | WeightSchedule] | None = None,
        *,
        unit: Unit = "samples",
        name: str = "mix",
        seed: int = 0,
        window: int = _WINDOW,
        shard: Shard | None = None,
    ) -> None:
        super().__init__(shard or Shard())
        self._name = check_name(name, "mix")
        self.seed = seed
        self.window = window
        if is_source(children) or isinstance(children, InfiniteDataset | StreamingSource | str | Mapping):
            raise ConfigError(f"mix {name!r}: give a list of sources, such as [gsm8k, code], not {children!r}")
        self.children = [_checked(child, name) for child in children]
        if not children:
            raise ConfigError(f"mix {name!r} has no children; give at least one source")
        if not isinstance(window, int) or window < 1:
            raise ConfigError(f"mix {name!r}: window {window!r} is not a number of draws >= 1")
        if isinstance(weights, str | Mapping) or not isinstance(weights, Sized | None):
            raise ConfigError(f"mix {name!r}: weights are a list with one for each source, not {weights!r}")
        if weights is not None and len(weights) != len(children):
            raise ConfigError(f"mix {name!r}: {len(weights)} weights for {len(children)} sources; give one each")
        if unit not in get_args(Unit):
            raise ConfigError(f"mix {name!r}: unit {unit!r} is none of {', '.join(get_args(Unit))}")
        self.unit: Unit = unit
        given: Sequence[Any] = [None] * len(children) if weights is None else weights
        by_name = {child.name: weight for child, weight in zip(self.children, given, strict=True)}
        checked = check_weights(by_name, f"mix {name!r}")
        self.weights: list[Weight] | None = None if checked is None else list(checked.values())
        for child_name, weight in (checked or {}).items():
            if not ever_drawn(weight):
                logger.info("%s: weight 0, so it is never drawn nor opened", child_name)
        _check_names(self)

    @property
    def name(self) -> str:
        return self._name

    @property
    def info(self) -> Info:
        return self.tree(self.mixture(None).leaves)

    def tree(self, leaves: Sequence[Leaf]) -> Info:
        """The part of the pipeline tree from here on, for the leaves that were made of it."""
        detail = f"seed {self.seed}, weights count tokens" if self.unit == "tokens" else f"seed {self.seed}"
        return self._tree({leaf.name: leaf for leaf in leaves}, detail, 1.0)

    def _tree(self, leaves: dict[str, Leaf], detail: str, share: float | None) -> Info:
        below: list[Info] = []
        for child in self.children:
            if isinstance(child, Interleave):
                inner = sum(leaf.share for leaf in leaves.values() if child.name in leaf.groups)
                below.append(child._tree(leaves, "", inner) if inner else Info(child.name, "never drawn", 0.0))
            elif child.name in leaves:
                leaf = leaves[child.name]
                rows = "read in order" if leaf.streams else f"{leaf.rows:,} rows"
                left_out = "".join(f", {count:,} {reason}" for reason, count in leaf.dropped.items())
                below.append(Info(child.name, f"{rows}{left_out}", leaf.share))
            else:
                below.append(Info(child.name, "never drawn", 0.0))
        return Info(self.name, detail, share if detail == "" else None, tuple(below))

    def mixture(self, packing: Packing | None) -> Mixture:
        """The sources that are drawn under `packing`, and by which weights.

        Raises:
            EmptySourceError: a source with a weight above 0 has no row that could be drawn.
            DataError: a row is too long under ``overflow: error``.
        """
        leaves: list[Leaf] = []
        tree = self._gathered((), packing, {}, leaves)
        shares = tree.shares(0)
        leaves = [replace(leaf, share=shares[leaf.name]) for leaf in leaves]
        return Mixture(leaves=tuple(sorted(leaves, key=lambda leaf: leaf.name)), weights=tree, unit=self.unit)

    def _gathered(
        self, groups: tuple[str, ...], packing: Packing | None, rows: dict[str, _Rows], leaves: list[Leaf]
    ) -> WeightTree:
        """This part of the tree without what is never drawn; its sources are added to `leaves`."""
        inside = (*groups, self.name)
        weights: list[Weight] = self.weights or [float(self._row_count(c, packing, rows)) for c in self.children]
        below: list[tuple[WeightTree, Weight]] = []
        for child, weight in zip(self.children, weights, strict=True):
            if not ever_drawn(weight):
                continue
            if isinstance(child, Interleave):
                below.append((child._gathered(inside, packing, rows, leaves), weight))
            else:
                below.append((WeightTree(child.name), weight))
                leaves.append(self._leaf(child, inside, packing, rows))
        return WeightTree(self.name, tuple(below))

    def _leaf(
        self,
        child: Source | StreamingSource | SourceStream,
        groups: tuple[str, ...],
        packing: Packing | None,
        rows: dict[str, _Rows],
    ) -> Leaf:
        if isinstance(child, StreamingSource):
            return Leaf(source=child, groups=groups, shuffle=child.shuffle, overflow=child.overflow)
        self._row_count(child, packing, rows)
        found = rows[child.name]
        stream = child if isinstance(child, SourceStream) else None
        return Leaf(
            source=_source(child),
            groups=groups,
            shuffle=stream.shuffle if stream else True,
            shuffle_groups=stream.shuffle_groups if stream else None,
            usable=found.usable,
            dropped=found.dropped,
            overflow=stream.overflow if stream else None,
        )

    def _row_count(self, child: Child, packing: Packing | None, rows: dict[str, _Rows]) -> int:
        """Rows of a child that can be drawn."""
        if isinstance(child, Interleave):
            weights = child.weights or [1.0] * len(child.children)
            drawn = [inner for inner, weight in zip(child.children, weights, strict=True) if ever_drawn(weight)]
            return sum(child._row_count(inner, packing, rows) for inner in drawn)
        source = _source(child)
        if isinstance(source, StreamingSource):
            raise ConfigError(
                f"mix {self.name!r}: how many rows source {source.name!r} has is unknown until it is read, so it needs "
                "a weight; give all sources beside it one too"
            )
        if child.name not in rows:
            overflow = child.overflow if isinstance(child, SourceStream) else None
            usable, dropped = usable_rows(source, None if packing is None else packing.of(overflow))
            rows[child.name] = _Rows(usable, dropped, len(source) if usable is None else len(usable))
        return rows[child.name].count

    def plan(self, lanes: int = 1) -> Plan:
        return Plan(self.mixture(None), seed=self.seed, packing=None, window=self.window, lanes=lanes)

    def _made(self, lane: Lane, documents: Documents, packs: int) -> list[Sample]:
        return samples(lane.plan.leaves, lane.read, documents)


def _source(child: Source | StreamingSource | SourceStream) -> Source | StreamingSource:
    return child.source if isinstance(child, SourceStream) else child


def _checked(child: object, mix: str) -> Child:
    """The child, if it promises to be endless."""
    if isinstance(child, StreamingSource):
        return child
    if isinstance(child, SourceStream | Interleave):
        return whole(child, f"mix {mix!r}")
    if is_source(child):
        check_name(child.name)
        return child
    raise ConfigError(
        f"mix {mix!r}: {type(child).__name__} does not promise to be endless; give a TokenStore "
        "(TokenStore.from_rows takes any rows), an object with the members of streamsft.Source "
        f"(it lacks {', '.join(missing_members(child))}), or an Interleave"
    )


def _check_names(mix: Interleave) -> None:
    seen: set[str] = set()

    def visit(node: Child) -> None:
        if node.name in seen:
            raise ConfigError(
                f"mix {mix.name!r}: the name {node.name!r} stands twice in the tree; names are unique over all "
                "sources and mixes (TokenStore.renamed, Interleave(name=...))"
            )
        seen.add(node.name)
        for child in node.children if isinstance(node, Interleave) else ():
            visit(child)

    visit(mix)
