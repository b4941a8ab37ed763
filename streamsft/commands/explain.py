"""``streamsft explain``: which rows of which files made a step, and where they lie in its packs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from streamsft.build_sources import Transforms
from streamsft.commands.console import make_console
from streamsft.commands.explain_run import last_step, loader_before, run_config
from streamsft.commands.explained import ExplainedDocument, ExplainedPack, ExplainedStep
from streamsft.commands.marked import LEGEND, mark, runs
from streamsft.commands.telling import telling
from streamsft.config import ConfigLike, load_config
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError
from streamsft.shown import placed
from streamsft.stream.balance import balanced_ranks, pack_costs
from streamsft.stream.collate import Batch
from streamsft.stream.loader import Loader
from streamsft.stream.mixture import Leaf
from streamsft.stream.skipping import advance
from streamsft.stream.topology import Topology
from streamsft.training.audit import pack_digest
from streamsft.types import Shard

__all__ = ["explain"]


def explain(
    config: ConfigLike | None = None,
    step: int = 1,
    *,
    run: str | Path | None = None,
    rank: int | None = None,
    ranks: int = 1,
    overrides: Iterable[str] = (),
    transforms: Transforms | None = None,
    decode: bool = False,
    console: Console | None = None,
) -> ExplainedStep:
    """Print which rows of which files make step `step`, and where they lie in its packs.

    Planned from lengths alone up to that step, whatever the number of ranks and workers; only its own rows are read.
    The step of a streamed mix, or of a run whose mix was edited, is reached from the run's nearest checkpoint. Of a
    step that the run has not made yet it is said so. Rows are numbered from 0, in the source as in their file.

    Args:
        config: a file, a mapping, or a `Config`; by default that of the run.
        step: optimizer step, from 1.
        run: a run directory, for its checkpoints and the edits of its mix.
        rank: show the packs of one data-parallel rank of `ranks`; None shows all.
        ranks: number of data-parallel ranks.
        overrides: ``key.path=value`` texts laid over the config.
        transforms: source name → function from a row to ``input_ids`` and ``loss_mask``.
        decode: print the text of each document.
        console: where to print; standard output by default.

    Raises:
        StreamsftError: what can be mended.
    """
    console = console or make_console()
    if step < 1:
        raise ConfigError(f"explain: step {step}; steps are counted from 1")
    transforms = transforms or {}
    loaded = load_config(run_config(run) if config is None else config, overrides, without_tokenizer=transforms)
    encoders = Encoders(loaded)
    place = None if run is None else Path(run)
    loader = loader_before(loaded, step, place, encoders, transforms, given=config is not None)
    _check_rank(loader, rank, ranks)
    explained, batch = _explained(loader, step, ranks)
    known = None if place is None else last_step(place)
    shown = tuple(pack for pack in explained.packs if rank is None or pack.rank == rank)
    chosen = replace(explained, packs=shown, run_step=known)
    if chosen.made is False:
        console.print(
            f"step {step:,} has not been made: {run} tells of steps up to {known:,}; this is what it will be given, if "
            "its config stays as it is",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    backend = encoders.backend
    for pack in chosen.packs:
        _print_pack(console, pack)
        if decode:
            _print_text(console, batch, pack, _numbers if backend is None else backend.decode)
    return chosen


def _check_rank(loader: Loader, rank: int | None, ranks: int) -> None:
    """Refuse a rank that has no packs of a step.

    Raises:
        ConfigError: there is no such rank, or so many cannot share the step.
    """
    batch = loader.topology.global_batch_size
    if ranks < 1 or (rank is not None and not 0 <= rank < ranks):
        raise ConfigError(f"explain: rank {rank} of {ranks}; ranks are numbered 0 to {max(0, ranks - 1)}, see --ranks")
    Topology(global_batch_size=batch, dp=Shard(rank or 0, ranks))


def _ranks(loader: Loader, batch: Batch, ranks: int) -> list[int]:
    """The rank of each pack of a step that so many share."""
    balance = loader.topology.balance
    if balance == "none":
        return [number * ranks // len(batch) for number in range(len(batch))]
    table = batch.documents.table
    costs = pack_costs(table.length, np.searchsorted(table.pack, np.arange(len(batch))), balance)
    owners: list[int] = balanced_ranks(costs, ranks).tolist()
    return owners


def _explained(loader: Loader, step: int, ranks: int) -> tuple[ExplainedStep, Batch]:
    """The step, which comes behind where `loader` stands, and its batch."""
    with telling(f"planning to step {step:,}") as told:
        advance(loader, step - 1, told)
    batch = next(iter(loader))
    documents = _documents(batch, loader._mixes.leaves)
    borders = np.searchsorted(batch.documents.table.pack, np.arange(len(batch) + 1)).tolist()
    ids, labels = batch.input_ids.numpy(), batch.labels.numpy()
    owners = _ranks(loader, batch, ranks)
    packs = [
        ExplainedPack(
            number=number,
            rank=owners[number],
            slots=ids.shape[1],
            digest=pack_digest(ids[number], labels[number]),
            documents=tuple(documents[first:last]),
        )
        for number, (first, last) in enumerate(pairwise(borders))
    ]
    return ExplainedStep(step=batch.step, data_step=batch.data_step, packs=tuple(packs)), batch


def _documents(batch: Batch, leaves: Sequence[Leaf]) -> list[ExplainedDocument]:
    table = batch.documents.table
    taken = (table.length, table.supervised, table.start, table.cut)
    columns = (table.source, table.row, table.pass_index, table.slot, *taken)
    found = []
    for source, row, pass_index, first, length, supervised, start, cut in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        found.append(
            ExplainedDocument(
                source=leaves[source].name,
                row=row,
                pass_index=pass_index,
                place=_place(leaves[source], row),
                slot=first,
                length=length,
                supervised=supervised,
                start=start,
                cut=cut,
            )
        )
    return found


def _place(leaf: Leaf, row: int) -> str:
    """Where a row of a source came from, as ``file:row``, the rows of a file numbered from 0."""
    if leaf.streams:
        return leaf.streamed.reader.where(row)
    return leaf.indexed.origin(int(np.searchsorted(leaf.indexed.row_numbers, row)))


def _print_pack(console: Console, pack: ExplainedPack) -> None:
    tokens = sum(document.length for document in pack.documents)
    title = (
        f"pack {pack.number}, rank {pack.rank}: {len(pack.documents)} documents, {tokens:,} tokens, "
        f"{pack.slots - tokens:,} padding, digest {pack.digest}"
    )
    console.print(title, soft_wrap=True, highlight=False, style="bold")
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("source:row", "pass", "from"):
        table.add_column(heading, justify="right" if heading == "pass" else "left", overflow="fold")
    for heading in ("slots", "tokens", LEGEND, "cut"):
        table.add_column(heading, justify="right")
    for one in pack.documents:
        fragment = f" from token {one.start}" if one.start else ""
        slots = f"{one.slot}–{one.slot + one.length - 1}"
        numbers = (slots, f"{one.length:,}", f"{one.supervised:,}", f"{one.cut:,}" if one.cut else "")
        table.add_row(f"{one.source}:{one.row}{fragment}", str(one.pass_index), Text(placed(one.place)), *numbers)
    console.print(table)


def _print_text(console: Console, batch: Batch, pack: ExplainedPack, decode: Callable[[Sequence[int]], str]) -> None:
    ids, labels = batch.input_ids[pack.number].numpy(), batch.labels[pack.number].numpy()
    for one in pack.documents:
        part = slice(one.slot, one.slot + one.length)
        console.print(Rule(f"{one.source}:{one.row}, slots {one.slot}–{one.slot + one.length - 1}", align="left"))
        text = mark(console, runs(ids[part], labels[part] >= 0, decode))
        console.print(text, soft_wrap=True, highlight=False)


def _numbers(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids)) + " "
