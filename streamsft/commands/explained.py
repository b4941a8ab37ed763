"""What a step was made of, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

__all__ = ["ExplainedDocument", "ExplainedPack", "ExplainedStep"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedDocument:
    """A document in a pack.

    Attributes:
        source: the source's name.
        row: the row's number in the source's input order.
        pass_index: how often the source had been gone through before.
        place: where the row came from, as ``file:row``, the rows of a file numbered from 0.
        slot: first slot that it fills.
        length: tokens, which is also the slots that it fills.
        supervised: tokens that are trained on.
        start: first token taken of the row; above 0 in later fragments only.
        cut: tokens that truncation left out behind it.
    """

    source: str
    row: int
    pass_index: int
    place: str
    slot: int
    length: int
    supervised: int
    start: int = 0
    cut: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedPack:
    """A pack of a step.

    Attributes:
        number: its number in the step, from 0, over all ranks.
        rank: the data-parallel rank that has it.
        slots: its slots, in tokens.
        digest: as the audit has it.
        documents: in the order they stand in it.
    """

    number: int
    rank: int
    slots: int
    digest: str
    documents: tuple[ExplainedDocument, ...]

    @property
    def rows(self) -> list[list[Any]]:
        """The [source, row, pass] triples, as the audit has them."""
        return [[one.source, one.row, one.pass_index] for one in self.documents]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedStep:
    """A step.

    Attributes:
        step: optimizer step.
        data_step: step of the stream; above `step` by the steps that were skipped.
        packs: its packs, or one rank's.
        run_step: the last step that the run's files tell of; None where no run was given.
    """

    step: int
    data_step: int
    packs: tuple[ExplainedPack, ...]
    run_step: int | None = None

    @property
    def made(self) -> bool | None:
        """Whether the run has made the step; None where no run was given."""
        return None if self.run_step is None else self.step <= self.run_step

    def to_json(self) -> dict[str, Any]:
        """As JSON values; digests and rows are those of the audit."""
        return {
            "step": self.step,
            "data_step": self.data_step,
            "made": self.made,
            "run_step": self.run_step,
            "packs": [
                {
                    "pack": pack.number,
                    "rank": pack.rank,
                    "slots": pack.slots,
                    "digest": pack.digest,
                    "rows": pack.rows,
                    "documents": [
                        {
                            "source": one.source,
                            "row": one.row,
                            "pass": one.pass_index,
                            "place": one.place,
                            "slot": one.slot,
                            "length": one.length,
                            "supervised": one.supervised,
                            "start": one.start,
                            "cut": one.cut,
                        }
                        for one in pack.documents
                    ],
                }
                for pack in self.packs
            ],
        }
