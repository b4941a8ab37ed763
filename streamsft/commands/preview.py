"""``streamsft preview``: what a config's stream is made of, before anything is trained on it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from streamsft.build import Built, build, build_aggregator, build_mix, build_packer
from streamsft.build_ahead import check_sizes
from streamsft.build_sources import Transforms
from streamsft.comm import LocalComm
from streamsft.commands.console import make_console
from streamsft.commands.marked import LEGEND, mark, runs
from streamsft.commands.preparing import prepare_sources, print_sources
from streamsft.config import ConfigLike, load_config
from streamsft.config_origin import pointing
from streamsft.encoders import Encoders
from streamsft.metrics.metric import Metric
from streamsft.pages.packs import packs_page
from streamsft.pages.shell import check_page, write_page
from streamsft.shown import counted
from streamsft.stream.packer import Packer
from streamsft.types import Pack, Sample

__all__ = ["Survey", "preview"]

Decode = Callable[[Sequence[int]], str]


@final
@dataclass(slots=True, kw_only=True)
class Survey:
    """What the first packs of a stream hold.

    Attributes:
        samples: draws per source; the fragments of a split row are one.
        tokens: tokens per source.
        packs: packs seen.
        slots: slots of these packs, in tokens.
    """

    samples: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    packs: int = 0
    slots: int = 0
    _seen: set[tuple[str, int, int]] = field(default_factory=set, repr=False)

    def add(self, pack: Pack) -> None:
        """Count one more pack."""
        self.packs += 1
        self.slots += pack.sequence_length
        for sample in pack.samples:
            draw = (sample.source, sample.row, sample.pass_index)
            self.samples[sample.source] += draw not in self._seen
            self._seen.add(draw)
            self.tokens[sample.source] += len(sample)

    @property
    def efficiency(self) -> float:
        """Share of the slots that hold a token."""
        return self.tokens.total() / max(1, self.slots)


@pointing
def preview(
    config: ConfigLike,
    *,
    overrides: Iterable[str] = (),
    transforms: Transforms | None = None,
    metrics: Sequence[Metric] = (),
    packs: int = 2,
    draws: int = 10_000,
    html: str | os.PathLike[str] | None = None,
    console: Console | None = None,
) -> Survey:
    """Print a config's sources, its pipeline, the mix asked for and realised, and its first packs.

    Weights by step are those of the first step.

    Args:
        config: a file, a mapping, or a `Config`.
        overrides: ``key.path=value`` texts laid over it.
        transforms: source name → function from a row to ``input_ids`` and ``loss_mask``.
        metrics: numbers to take of each sample drawn, and to print.
        packs: how many packs to print.
        draws: samples to draw for the realised mix and the packing efficiency.
        html: a file to write the packs to, as a page that opens offline, instead of printing them.
        console: where to print; standard output by default.

    Returns:
        What was drawn.

    Raises:
        StreamsftError: what can be mended.
    """
    console = console or make_console()
    if html is not None:
        check_page(Path(html))
    config = load_config(config, overrides, without_tokenizer=transforms or ())
    check_sizes(config)
    encoders = Encoders(config)
    sources = prepare_sources(config, encoders, LocalComm(), transforms=transforms)
    built = build(config, sources, encoders, metrics=metrics)
    print_sources(console, sources)
    console.print(str(built.loader.info), markup=False, highlight=False, soft_wrap=True)
    packer = build_packer(config, build_mix(config, sources, step=1))
    survey, shown = _draw(packer, packs, draws)
    console.print(_mix_table(built, survey))
    console.print(
        f"packing: {survey.packs:,} packs of {config.sequence_length:,} slots, {survey.efficiency:.2%} of them filled",
        highlight=False,
    )
    if metrics:
        console.print(_metrics_table(built, draws))
    if html is not None:
        _write_page(Path(html), shown, encoders, " + ".join(sources))
        console.print(str(html), markup=False, highlight=False, soft_wrap=True)
        return survey
    decode = encoders.backend.decode if encoders.backend is not None else _numbers
    for number, pack in enumerate(shown):
        _print_pack(console, number, pack, decode)
    return survey


def _draw(packer: Packer, packs: int, draws: int) -> tuple[Survey, list[Pack]]:
    survey = Survey()
    shown: list[Pack] = []
    for pack in packer:
        survey.add(pack)
        if len(shown) < packs:
            shown.append(pack)
        if survey.samples.total() >= draws and len(shown) >= packs:
            break
    return survey, shown


def _write_page(path: Path, packs: Sequence[Pack], encoders: Encoders, title: str) -> None:
    backend = encoders.backend
    decode = None if backend is None else backend.decode
    control = frozenset() if backend is None else backend.control
    write_page(path, packs_page(packs, decode=decode, control=control, title=title))


def _mix_table(built: Built, survey: Survey) -> Table:
    title = f"Mix over {survey.samples.total():,} draws"
    if built.packer.plan(1).scheduled:
        title += ", by the weights of step 1; forecast follows them"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("source", overflow="fold")
    for heading in ("asked", "of samples", "of tokens", "samples", "tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    samples, tokens = max(1, survey.samples.total()), max(1, survey.tokens.total())
    for source in built.loader.sources:
        drawn, read = survey.samples[source.name], survey.tokens[source.name]
        table.add_row(
            "/".join((*source.groups[1:], source.name)),
            f"{source.weight:.2%}",
            f"{drawn / samples:.2%}",
            f"{read / tokens:.2%}",
            counted(drawn),
            counted(read),
        )
    return table


def _metrics_table(built: Built, draws: int) -> Table:
    """The user's metrics over about `draws` samples."""
    aggregator = build_aggregator(built.config, built.loader, built.metrics, LocalComm())
    seen = 0
    for batch in built.loader:
        aggregator.update(batch.stats)
        seen += len(batch.stats)
        if seen >= draws:
            break
    record = aggregator.log()
    table = Table(title=f"Metrics over {seen:,} documents", box=box.SIMPLE_HEAD)
    table.add_column("metric", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    names = {name for metric in built.metrics for name in metric.keys.values()}
    for key, value in record.items():
        if key.rpartition("/")[2] in names:
            table.add_row(key, f"{value:,.6g}")
    return table


def _print_pack(console: Console, number: int, pack: Pack, decode: Decode) -> None:
    padding = pack.sequence_length - pack.tokens
    title = f"pack {number}: {len(pack.samples)} documents, {pack.tokens:,} tokens, {padding:,} padding"
    console.print()
    console.print(Rule(title, characters="═"))
    console.print("Documents are bordered; ", mark(console, [(LEGEND, True)]), " tokens stand out.", sep="")
    for sample in pack.samples:
        _print_document(console, sample, decode)


def _print_document(console: Console, sample: Sample, decode: Decode) -> None:
    mask = sample.loss_mask.copy()
    mask[:1] = False  # the first token of a document has no context to be predicted from
    piece = f" from token {sample.start}" if sample.start else ""
    where = f"{sample.source}:{sample.row}{piece}, pass {sample.pass_index}"
    title = f"{where}, {len(sample):,} tokens, {mask.sum():,} {LEGEND}"
    console.print(Rule(title, align="left"))
    console.print(mark(console, runs(sample.input_ids, mask, decode)), soft_wrap=True, highlight=False)


def _numbers(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids)) + " "
