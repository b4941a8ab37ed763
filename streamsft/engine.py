"""Where work is done: an engine has a job done on items, and gives the results in the order of the items.

What reads the items and writes the results is the same for all engines, and so are the results: where a job runs,
and how many workers share it, decides how long it takes and nothing else.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, final

from streamsft.errors import DataError, StreamsftError

__all__ = ["QUIET_SECONDS", "Done", "Engine", "Job", "attempted", "place_of"]

QUIET_SECONDS = 300.0
"""How long no worker has anything to say until it is told what they are at, and again each time."""

Item = TypeVar("Item")
Result = TypeVar("Result")
_In = TypeVar("_In", contravariant=True)
_Out = TypeVar("_Out", covariant=True)


class Job(Protocol[_In, _Out]):
    """What a worker does with an item."""

    def run(self, item: _In, /) -> _Out:
        """The result for `item`; a function of nothing else."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was not done again, since an earlier call had published it.

    Attributes:
        rows: rows of the input, rejected ones included.
        files: files all of whose rows are among them.
        parts: pieces that were published by a call that was stopped; 0 where the whole was there.
    """

    rows: int = 0
    files: int = 0
    parts: int = 0


class Engine(ABC):
    """Does jobs; leaving the block ends its workers.

    Attributes:
        done: by source what it did not have to do again.
    """

    def __init__(self) -> None:
        self.done: dict[str, Done] = {}

    def map(self, job: Job[Item, Result], items: Iterable[Item], *, what: str) -> Iterator[tuple[Item, Result]]:
        """Each item with what `job` makes of it, in order; few items are in memory at a time.

        Args:
            job: what to do. Every worker gets a copy, once.
            items: taken as they are needed.
            what: what is being done, for messages (``source gsm8k``).

        Raises:
            ConfigError: the job cannot be sent to the workers, or there are none.
            DataError: workers died, the job failed with an error that is none of streamsft's, or there are not as many
                results as items.
            StreamsftError: the job raised it.
        """
        taken = given = 0

        def counted() -> Iterator[Item]:
            nonlocal taken
            for item in items:
                taken += 1
                yield item

        source = counted()
        for pair in self._map(job, source, what=what):
            given += 1
            yield pair
        more = next(source, None) is not None
        if given != taken:
            items_read = "more" if more else f"{taken:,}"
            raise DataError(
                f"{what}: {type(self).__name__} gave {given:,} results for {items_read} items; nothing is kept"
            )

    @abstractmethod
    def _map(self, job: Job[Item, Result], items: Iterator[Item], *, what: str) -> Iterator[tuple[Item, Result]]:
        """`map`, which sees to it that nothing is missing."""

    @abstractmethod
    def close(self) -> None:
        """End the workers; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def place_of(item: object) -> str:
    """Where the rows of an item stand, for messages: ", file 0 from line 12 on"; "" where that is not known."""
    for name, what in (("first_line", "line"), ("first_row", "row")):
        if (first := getattr(item, name, None)) is not None:
            return f", file {getattr(item, 'file', 0)} from {what} {first} on"
    return ""


def attempted(job: Job[Any, Any], item: Any) -> tuple[bool, Any]:
    """(True, the result), or (False, the error to be raised where the results are wanted)."""
    try:
        return True, job.run(item)
    except StreamsftError as error:
        return False, error
    except Exception as error:  # sent to the process that asked, which raises it
        told = "".join(traceback.format_exception(error))
        return False, DataError(f"{type(error).__name__} in a worker process: {error}\n{told}")
