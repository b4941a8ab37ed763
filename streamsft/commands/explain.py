"""``streamsft explain``: which rows of which files made a step, and where they lie in its packs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from streamsft.build_sources import Transforms
from streamsft.commands.console import make_console
from streamsft.commands.explain_run import loader_before, run_config
from streamsft.commands.explained import ExplainedDocument, ExplainedPack, ExplainedStep
from streamsft.commands.marked import LEGEND, mark, runs
from streamsft.commands.telling import telling
from streamsft.config import ConfigLike, load_config
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError
from streamsft.stream.collate import Batch, collate
from streamsft.stream.loader import Loader
from streamsft.stream.materialize import materialize
from streamsft.stream.skipping import planner_to, stream_step
from streamsft.stream.steps import Mixes, StepPlan, Topology, checked_stretches
from streamsft.training.audit import pack_digest
from streamsft.types import Ints, Shard

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
    The step of a streamed mix, or of a run whose mix was edited, is reached from the run's nearest checkpoint.

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
    loader = loader_before(loaded, step, None if run is None else Path(run), encoders, transforms)
    shown = _share(loader, rank, ranks)
    explained, batch = _explained(loader, step, ranks)
    chosen = ExplainedStep(step=explained.step, data_step=explained.data_step, packs=explained.packs[shown])
    backend = encoders.backend
    for pack in chosen.packs:
        _print_pack(console, pack)
        if decode:
            _print_text(console, batch, pack, _numbers if backend is None else backend.decode)
    return chosen


def _share(loader: Loader, rank: int | None, ranks: int) -> slice:
    """Which packs of a step a rank has.

    Raises:
        ConfigError: there is no such rank, or so many cannot share the step.
    """
    batch = loader.topology.global_batch_size
    if ranks < 1 or (rank is not None and not 0 <= rank < ranks):
        raise ConfigError(f"explain: rank {rank} of {ranks}; ranks are numbered 0 to {max(0, ranks - 1)}, see --ranks")
    packs = Topology(global_batch_size=batch, dp=Shard(rank or 0, ranks)).packs
    return slice(None) if rank is None else slice(rank * packs, (rank + 1) * packs)


def _explained(loader: Loader, step: int, ranks: int) -> tuple[ExplainedStep, Batch]:
    """The step, which comes behind where `loader` stands."""
    with telling(f"planning to step {step:,}") as told:
        planner, _ = planner_to(loader, step - 1, told)
    data_step = stream_step(step, checked_stretches(loader.skip_steps), (loader.step, loader.data_step))
    while planner.step < data_step:
        planned = planner.next()
    raw = materialize(loader._mixes.names, planner.read, planned, ())
    batch = collate(raw, loader._mixes.names, loader.packer.packing.sequence_length, loader.pad_id, step)
    packs = tuple(_packs(planned, batch, loader, ranks))
    return ExplainedStep(step=step, data_step=data_step, packs=packs), batch


def _packs(planned: StepPlan, batch: Batch, loader: Loader, ranks: int) -> Iterator[ExplainedPack]:
    documents = _documents(planned, batch, loader._mixes)
    borders = np.searchsorted(planned.documents.pack, np.arange(planned.packs + 1)).tolist()
    ids, labels = batch.input_ids.numpy(), batch.labels.numpy()
    for number, (first, last) in enumerate(pairwise(borders)):
        yield ExplainedPack(
            number=number,
            rank=number * ranks // planned.packs,
            slots=loader.packer.packing.sequence_length,
            digest=pack_digest(ids[number], labels[number]),
            documents=tuple(documents[first:last]),
        )


def _documents(planned: StepPlan, batch: Batch, mixes: Mixes) -> list[ExplainedDocument]:
    documents = planned.documents
    ends = np.cumsum(documents.length)
    before = np.concatenate([[0], ends])[np.searchsorted(documents.pack, documents.pack)]
    columns: Sequence[Ints] = (
        documents.source,
        documents.stored,
        documents.row,
        documents.pass_index,
        documents.start,
        documents.length,
        documents.cut,
        ends - documents.length - before,
        batch.documents.table.supervised,
    )
    found = []
    for source, stored, row, pass_index, start, length, cut, slot, supervised in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        leaf = mixes.leaves[source]
        place = leaf.streamed.reader.where(row) if leaf.streams else leaf.indexed.origin(stored)
        found.append(
            ExplainedDocument(
                source=leaf.name,
                row=row,
                pass_index=pass_index,
                place=place,
                slot=slot,
                length=length,
                supervised=supervised,
                start=start,
                cut=cut,
            )
        )
    return found


def _print_pack(console: Console, pack: ExplainedPack) -> None:
    tokens = sum(document.length for document in pack.documents)
    table = Table(
        title=f"pack {pack.number}, rank {pack.rank}: {len(pack.documents)} documents, {tokens:,} tokens, "
        f"{pack.slots - tokens:,} padding, digest {pack.digest}",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    for heading in ("source:row", "pass", "from"):
        table.add_column(heading, justify="right" if heading == "pass" else "left", overflow="fold")
    for heading in ("slots", "tokens", LEGEND, "cut"):
        table.add_column(heading, justify="right")
    for one in pack.documents:
        fragment = f" from token {one.start}" if one.start else ""
        slots = f"{one.slot}–{one.slot + one.length - 1}"
        numbers = (slots, f"{one.length:,}", f"{one.supervised:,}", f"{one.cut:,}" if one.cut else "")
        table.add_row(f"{one.source}:{one.row}{fragment}", str(one.pass_index), one.place, *numbers)
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
