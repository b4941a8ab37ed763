"""The laws that every endless stage keeps, as functions of a factory.

A factory makes the same stage anew each time it is called. `samples` reduces whatever a stage gives out (samples,
packs, batches) to `Seen` documents, so that a law needs to know nothing else about the stage.
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streamsft.comm import ThreadComm
from streamsft.stream.collate import Batch
from streamsft.stream.loader import Loader
from streamsft.types import Pack, Sample, Shard
from tests.fakes import ListSource

IGNORE = -100


class Stage(Protocol):
    """What the laws ask of an endless stage."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Seen(NamedTuple):
    """A document as it came out of a stage."""

    source: str
    row: int
    pass_index: int
    start: int
    ids: tuple[int, ...]
    labelled: tuple[bool, ...]
    """True where the token is a label: supervised, and not the document's first."""


def samples(item: Any) -> list[list[Seen]]:
    """The documents of a sample, a pack or a batch, pack by pack; a batch's are read back from its tensors."""
    if isinstance(item, Sample):
        labelled = item.loss_mask.copy()
        labelled[:1] = False
        return [
            [Seen(item.source, item.row, item.pass_index, item.start, tuple(item.input_ids.tolist()),
                  tuple(labelled.tolist()))]
        ]  # fmt: skip
    if isinstance(item, Pack):
        return [[seen for sample in item.samples for seen in samples(sample)[0]]]
    assert isinstance(item, Batch)
    return [_documents(item, pack) for pack in range(len(item))]


def _documents(batch: Batch, pack: int) -> list[Seen]:
    columns = (batch.input_ids, batch.labels, batch.position_ids, batch.document_ids)
    ids, labels, positions, numbers = (tensor[pack].numpy() for tensor in columns)
    found = []
    for number, (source, row, pass_index) in enumerate(batch.rows[pack], 1):
        slots = np.flatnonzero(numbers == number)
        assert np.array_equal(slots, np.arange(slots[0], slots[-1] + 1)), "a document's slots are not adjacent"
        counted = positions[slots].copy()
        if batch.branch_ids is not None:  # the rejected branch of a pair begins at the position of the chosen one
            branch = batch.branch_ids[pack].numpy()[slots]
            counted[branch == 2] += np.count_nonzero(branch == 1)
        assert np.array_equal(np.diff(counted), np.ones(len(slots) - 1)), "positions do not count up"
        labelled = labels[slots] != IGNORE
        assert np.array_equal(labels[slots][labelled], ids[slots][labelled]), "a label is not its token"
        found.append(
            Seen(source, row, pass_index, int(positions[slots[0]]), tuple(ids[slots].tolist()),
                 tuple(labelled.tolist()))
        )  # fmt: skip
    assert int((numbers > 0).sum()) == sum(len(seen.ids) for seen in found), "a token belongs to no document"
    return found


def first(stage: Stage, count: int) -> list[list[list[Seen]]]:
    """The next `count` items of a stage."""
    return [samples(item) for item in islice(stage, count)]


def as_json(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state after a way through a file."""
    result: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
    return result


def resumes_exactly(make: Callable[[], Stage], steps: int, segments: Sequence[int]) -> None:
    """Saved behind every item and loaded into a fresh stage, a stream goes on as if nothing had happened.

    Args:
        make: the factory.
        steps: items of the uninterrupted run; it is cut behind each of them.
        segments: items between several resumes in a row.
    """
    whole, states = make(), []
    expected = []
    for item in islice(whole, steps):
        states.append(as_json(whole.state_dict()))
        expected.append(samples(item))
    for cut in range(steps + 1):
        stage = make()
        if cut:
            stage.load_state_dict(states[cut - 1])
            assert stage.state_dict() == states[cut - 1], "loading and saving changed the state"
        for at in range(cut, min(cut + 2, steps)):
            assert first(stage, 1) == expected[at : at + 1]
            assert as_json(stage.state_dict()) == states[at], "a resumed stream's state differs"
    state, found = None, []
    for length in segments:
        stage = make()
        if state is not None:
            stage.load_state_dict(state)
        found += first(stage, length)
        state = as_json(stage.state_dict())
    assert found == first(make(), sum(segments))


def digest(make: Callable[[], Stage], steps: int) -> str:
    """One number for the next items and the state behind them; equal in every process."""
    stage = make()
    text = json.dumps([first(stage, steps), stage.state_dict()])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def spawn_safe(make: Callable[[], Stage], steps: int) -> None:
    """A stage survives pickling, before it is used and between two items, with its position."""
    expected = first(make(), 2 * steps)
    assert first(pickle.loads(pickle.dumps(make())), 2 * steps) == expected
    stage = make()
    head = first(stage, steps)
    assert head + first(pickle.loads(pickle.dumps(stage)), steps) == expected


def state_is_small_json(state: Mapping[str, Any], sources: int) -> None:
    """A state is plain JSON, the same after a way through a file, of at most 64 bytes per source and 2 kB."""
    assert as_json(state) == state
    size = len(json.dumps(state, separators=(",", ":")).encode())
    assert size <= 64 * sources + 2048, f"{size} bytes for {sources} sources"


@dataclass(frozen=True, slots=True)
class Rows:
    """What a source should give in each pass, worked out row by row from tokens and masks alone.

    Args:
        source: the source.
        limit: slots per pack; None where documents are not packed.
        overflow: what happens to a longer row.
    """

    source: ListSource
    limit: int | None = None
    overflow: str = "truncate"

    def documents(self, stored: int) -> list[Seen]:
        """The documents that come of one stored row (pass 0); none if there is nothing to train on."""
        ids, mask = self.source.ids[stored].tolist(), self.source.masks[stored].tolist()
        limit = self.limit or max(1, len(ids))
        starts = range(0, len(ids), limit)
        if self.overflow == "drop" and len(ids) > limit:
            starts = range(0)
        if self.overflow == "truncate":
            starts = range(min(1, len(ids)))
        pieces = [
            Seen(self.source.name, int(self.source.row_numbers[stored]), 0, start, tuple(ids[start : start + limit]),
                 (False, *mask[start + 1 : start + limit]))
            for start in starts
        ]  # fmt: skip
        supervised = [False, *mask[1:]]  # a later fragment is kept for its first token too, which has no label
        return [piece for piece in pieces if any(supervised[piece.start : piece.start + len(piece.ids)])]

    @property
    def all(self) -> list[Seen]:
        """The documents of one pass."""
        return [piece for stored in range(len(self.source)) for piece in self.documents(stored)]


def tokens_conserved(found: Sequence[Seen], rows: Sequence[Rows]) -> None:
    """Every document is, token for token and label for label, what its row should give."""
    expected = {(seen.source, seen.row, seen.start): seen for part in rows for seen in part.all}
    for seen in found:
        assert seen._replace(pass_index=0) == expected[seen.source, seen.row, seen.start]


def exactly_once(found: Sequence[Seen], rows: Sequence[Rows], complete: Mapping[str, int]) -> None:
    """Each document comes once in every pass that all lanes are beyond, and at most once in the others.

    Args:
        found: all that all lanes have given out.
        rows: what each source should give.
        complete: per source, the passes that all lanes are beyond.
    """
    times = Counter((seen.source, seen.pass_index, seen.row, seen.start) for seen in found)
    assert max(times.values(), default=1) == 1, f"twice: {times.most_common(1)}"
    for part in rows:
        name = part.source.name
        once = {(seen.row, seen.start) for seen in part.all}
        by_pass: dict[int, set[tuple[int, int]]] = {}
        for source, pass_index, row, start in times:
            if source == name:
                by_pass.setdefault(pass_index, set()).add((row, start))
        for pass_index in range(complete[name]):
            assert by_pass.get(pass_index) == once, f"{name}: pass {pass_index} of {complete[name]} is not complete"
        assert all(documents <= once for documents in by_pass.values())


def weights_hold(drawn: NDArray[np.int64], shares: Sequence[float]) -> None:
    """The draws of each source stay within ``2 + 2 * share * sqrt(sources)`` of its share, whenever they are counted.

    Args:
        drawn: draws of each source so far, at several moments, int64[moments, sources].
        shares: what was asked for; they sum to 1.
    """
    asked = np.array(shares)
    drift = np.abs(drawn - drawn.sum(axis=1, keepdims=True) * asked)
    bound = 2 + 2 * asked * math.sqrt(len(asked))
    assert (drift <= bound).all(), f"{(drift / bound).max():.2f} times the bound"


def length_trend(windows: Sequence[Sequence[Sequence[int]]]) -> float:
    """How strongly document length grows or falls over the packs of a window, in standard errors.

    Args:
        windows: per window, per pack, the lengths of its documents.

    Returns:
        The mean correlation of a pack's number with its longest document, divided by its standard error; without a
        trend it is normally distributed with variance 1.
    """
    correlations = []
    for packs in windows:
        longest = np.array([max(lengths) for lengths in packs], np.float64)
        correlations.append(np.corrcoef(np.arange(len(packs)), longest)[0, 1] * math.sqrt(len(packs) - 1))
    return float(np.sum(correlations) / math.sqrt(len(correlations)))


class Leg(NamedTuple):
    """A part of a run on one topology."""

    ranks: int
    steps: int
    workers: int = 0
    background: bool = False


def elastic(make: Callable[[Leg, Shard], Loader], legs: Sequence[Leg]) -> list[list[list[Seen]]]:
    """A run cut into legs of any topology gives, joined over ranks, the packs of the uninterrupted run.

    Args:
        make: the loader of one rank of a leg.
        legs: one after the other; the state goes through a file between them.

    Returns:
        The packs of each step, joined over ranks.
    """
    state: dict[str, Any] | None = None
    found: list[list[list[Seen]]] = []
    for leg in legs:
        loaders = [make(leg, Shard(rank, leg.ranks)) for rank in range(leg.ranks)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        parts = [first(loader, leg.steps) for loader in loaders]
        found += [[pack for part in step for pack in part] for step in zip(*parts, strict=True)]
        states = [as_json(gathered) for gathered in ThreadComm.run(leg.ranks, _gathered(loaders))]
        assert all(other == states[0] for other in states), "ranks gathered different states"
        state = states[0]
    whole = make(Leg(1, 0), Shard())
    assert found == first(whole, len(found))
    assert state == as_json(whole.gather_state()), "the state depends on the topology"
    return found


def _gathered(loaders: Sequence[Loader]) -> Callable[[ThreadComm], dict[str, Any]]:
    return lambda comm: loaders[comm.rank].gather_state(comm)
