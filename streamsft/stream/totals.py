"""What a mix gives over many steps, counted source by source along walks of its lanes."""

from __future__ import annotations

from typing import final

import numpy as np

from streamsft.stream.documents import Documents
from streamsft.stream.measures import Measures
from streamsft.stream.plan import Plan
from streamsft.stream.walk import Passed, Pattern
from streamsft.types import Floats, Ints

__all__ = ["Curve", "Totals"]


@final
class Totals:
    """Counts of what was given of each leaf of a plan of indexable sources; int64[leaves] each.

    Attributes:
        samples: draws; the fragments of a split row are one, counted where its first document is.
        documents: documents, fragments counted each.
        tokens: tokens in packs.
        supervised: of these, labels.
        cut: tokens that truncation left out.
        cut_samples: draws that it left something out of.
    """

    def __init__(self, plan: Plan, measures: list[Measures]) -> None:
        self._leaves = plan.leaves
        self._measures = measures
        count = len(plan.leaves)
        self.samples, self.documents, self.tokens, self.supervised, self.cut, self.cut_samples = (
            np.zeros(count, np.int64) for _ in range(6)
        )
        self._seen = [np.zeros(len(leaf.indexed), np.bool_) for leaf in plan.leaves]

    def passed(self, passed: Passed) -> None:
        """Count whole windows."""
        for at, measures in enumerate(self._measures):
            stored = passed.stored[passed.source == at]
            if not len(stored):
                continue
            taken = measures.of(stored)
            self.samples[at] += len(stored)
            self.documents[at] += measures.documents(stored)[0].sum()
            self.tokens[at] += taken.tokens.sum()
            self.supervised[at] += taken.supervised.sum()
            self.cut[at] += taken.cut.sum()
            self.cut_samples[at] += np.count_nonzero(taken.cut)
            self._seen[at][stored] = True

    def planned(self, documents: Documents, sign: int = 1) -> None:
        """Count documents; with -1, take back what was counted of them, save that their rows were seen."""
        for at, measures in enumerate(self._measures):
            mine = documents.take(documents.source == at)
            self.samples[at] += sign * mine.first.sum()
            self.documents[at] += sign * len(mine.stored)
            self.tokens[at] += sign * mine.length.sum()
            self.supervised[at] += sign * measures.labels(mine.stored, mine.start, mine.length).sum()
            self.cut[at] += sign * mine.cut.sum()
            self.cut_samples[at] += sign * np.count_nonzero(mine.cut)
            if sign > 0:
                self._seen[at][mine.stored] = True

    @property
    def coverage(self) -> Floats:
        """Share of the rows that can be drawn that were given at least once, float64[leaves]."""
        return np.array([seen.sum() / leaf.rows for seen, leaf in zip(self._seen, self._leaves, strict=True)])


@final
class Curve:
    """How many samples and tokens of each leaf one lane has given, by pack; exact at the borders of windows."""

    def __init__(self, plan: Plan, measures: list[Measures], pattern: Pattern) -> None:
        self._measures = measures
        self._pattern = pattern
        self._packs: list[Ints] = [np.zeros(1, np.int64)]
        self._given: list[Floats] = [np.zeros((1, 2 * len(plan.leaves)))]

    def passed(self, passed: Passed) -> None:
        """Note where whole windows end."""
        windows, leaves = len(passed.packs), len(self._measures)
        tokens = np.empty(len(passed.source), np.int64)
        for at, measures in enumerate(self._measures):
            mine = np.flatnonzero(passed.source == at)
            tokens[mine] = measures.of(passed.stored[mine]).tokens
        place = np.repeat(np.arange(windows), len(passed.source) // windows) * leaves + passed.source
        counts = [np.bincount(place, weights, windows * leaves) for weights in (None, tokens)]
        self._packs.append(passed.start + np.cumsum(passed.packs))
        given = np.concatenate([count.reshape(windows, leaves) for count in counts], axis=1)
        self._given.append(self._given[-1][-1] + np.cumsum(given, axis=0))

    def at(self, steps: Ints) -> Floats:
        """Samples, then tokens, of each leaf that were given by the ends of the steps, float64[steps, 2, leaves].

        Between two borders of windows in proportion to the packs; behind the last as within the last window.
        """
        packs = np.array([self._pattern.before(step + 1) for step in steps.tolist()], np.float64)
        borders, given = np.concatenate(self._packs).astype(np.float64), np.concatenate(self._given)
        found = np.stack([np.interp(packs, borders, column) for column in given.T], axis=1)
        if len(borders) > 1:
            beyond = np.maximum(packs - borders[-1], 0.0)[:, None]
            found += beyond * (given[-1] - given[-2]) / (borders[-1] - borders[-2])
        return found.reshape(len(steps), 2, -1)
