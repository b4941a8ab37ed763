"""``streamsft forecast``: what a run will be given, before it is started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rich import box
from rich.console import Console
from rich.table import Table

from streamsft.build import build
from streamsft.build_sources import Transforms
from streamsft.comm import LocalComm
from streamsft.commands.console import make_console
from streamsft.commands.forecast_weights import reweighted, wanted_passes, weight_lines
from streamsft.commands.preparing import prepare_sources
from streamsft.commands.telling import quietly, telling
from streamsft.config import Config, ConfigLike, load_config
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError
from streamsft.pages.shell import check_page, write_page
from streamsft.stream.forecasting import SourceForecast, StreamForecast, forecast_stream
from streamsft.stream.loader import Loader

__all__ = ["Forecast", "forecast"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run of a config will be given.

    Attributes:
        config: the config, with the weights asked for by `weights_for`.
        stream: the numbers, per source and over the run.
        warnings: what may not be meant, a sentence each.
        seconds: how long reading the slots of all packs takes at the speed that was given.
        weights: lines of YAML with weights that give the passes asked for.
    """

    config: Config
    stream: StreamForecast
    warnings: tuple[str, ...] = ()
    seconds: float | None = None
    weights: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The numbers as JSON values; those of a mix are over the sources in it."""
        stream = self.stream
        return {
            "steps": stream.steps,
            "exact": stream.exact,
            "packs": stream.packs,
            "slots": stream.slots,
            "samples": stream.samples,
            "tokens": stream.tokens,
            "supervised_tokens": sum(source.supervised for source in stream.sources.values()),
            "documents_per_pack": stream.documents / max(1, stream.packs),
            "packing_efficiency": stream.efficiency,
            "seconds": self.seconds,
            "warnings": list(self.warnings),
            "weights": list(self.weights),
            "sources": {name: source.to_json(stream.steps) for name, source in stream.sources.items()},
            "course": {name: getattr(stream.course, name) for name in ("steps", "asked", "samples", "tokens")},
        }


def forecast(
    config: ConfigLike,
    *,
    overrides: Iterable[str] = (),
    transforms: Transforms | None = None,
    steps: int | None = None,
    tokens_per_second: float | None = None,
    max_passes: float = 4.0,
    max_cut: float = 5.0,
    weights_for: str | None = None,
    estimate: bool = False,
    html: str | Path | None = None,
    console: Console | None = None,
) -> Forecast:
    """Print what a run will be given of each source: samples, tokens, passes, truncation, and how full packs are.

    Exact, and without reading tokens, where no source streams: equal to what the run's audit will say. With a
    streaming source, or `estimate`, it is estimated from the first draws. Sources that are not in the cache are
    tokenized first.

    Args:
        config: a file, a mapping, or a `Config`.
        overrides: ``key.path=value`` texts laid over it.
        transforms: source name → function from a row to ``input_ids`` and ``loss_mask``.
        steps: optimizer steps; by default `train.steps`. Not together with `weights_for`, which finds them.
        tokens_per_second: slots per second that training reads, padding included, over all ranks; for the time.
        max_passes: warn of a source that is gone through more often.
        max_cut: warn of a source of which more per cent of the tokens are truncated.
        weights_for: ``passes=3``, or ``passes=3,identity=1``: find the weights and the number of steps that go so often
            through each source, and forecast these.
        estimate: estimate from the first draws, for runs so long that counting takes minutes.
        html: write the forecast with charts to this file.
        console: where to print; standard output by default.

    Raises:
        StreamsftError: what can be mended.
    """
    console = console or make_console()
    if html is not None:
        check_page(Path(html), charts=True)
    title = Path(config).name if isinstance(config, str | Path) else "a mix"
    config = load_config(config, overrides, without_tokenizer=transforms or ())
    if weights_for is not None and steps is not None:
        raise ConfigError(
            f"--weights-for {weights_for} finds the number of steps that gives these passes, --steps {steps} sets "
            "another: give one of them"
        )
    if steps is None:
        steps = config.train.steps
    if weights_for is None and (steps is None or steps < 1):
        raise ConfigError(f"forecast: {steps} steps; give --steps, or train.steps in the config")
    wanted = None if weights_for is None else wanted_passes(config, weights_for)
    encoders = Encoders(config)
    sources = prepare_sources(config, encoders, LocalComm(), transforms=transforms)
    lines: tuple[str, ...] = ()
    if wanted is not None:
        with quietly():  # what is to be told of the mix that is found is told when it is built
            config, steps = reweighted(config, sources, encoders, wanted)
        lines = weight_lines(config, steps)
    assert steps is not None
    loader = build(config, sources, encoders).loader
    with telling("forecasting") as told:
        stream = forecast_stream(loader, steps, estimate=estimate, told=told)
    found = Forecast(
        config=config,
        stream=stream,
        warnings=tuple(_warnings(stream, loader, max_passes, max_cut)),
        seconds=None if tokens_per_second is None else stream.slots / tokens_per_second,
        weights=lines,
    )
    _print(console, found)
    if html is not None:
        from streamsft.pages.forecast import forecast_page

        write_page(Path(html), forecast_page(found.to_json(), title=title, unit=config.mix.unit))
        console.print(f"charts: {html}", markup=False, highlight=False, soft_wrap=True)
    return found


def _warnings(stream: StreamForecast, loader: Loader, max_passes: float, max_cut: float) -> Iterable[str]:
    limit = loader.packer.packing.sequence_length
    for name, source in stream.sources.items():
        if source.passes is not None and source.passes > max_passes:
            yield (
                f"{name} is gone through {source.passes:.1f} times, more than {max_passes:g}: lower its weight, or "
                "give it more rows"
            )
        if source.cut_share > max_cut / 100:
            yield (
                f"{name} loses {source.cut_share:.1%} of its tokens to truncation at {limit:,} slots, more than "
                f"{max_cut:g} %: raise sequence_length, or choose packing.overflow: split"
            )
        if not source.samples:
            yield f"{name} is not drawn in {stream.steps:,} steps"


def _print(console: Console, found: Forecast) -> None:
    stream = found.stream
    for line in found.weights:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(_table(stream))
    how = "counted" if stream.exact else "estimated from the first draws"
    lines = [
        f"packing: {stream.packs:,} packs of {stream.sequence_length:,} slots, {stream.efficiency:.2%} of them filled, "
        f"{stream.documents / max(1, stream.packs):.1f} documents each; {how}"
    ]
    if found.seconds is not None:
        lines.append(f"time to read: {_duration(found.seconds)}")
    lines += [f"warning: {warning}" for warning in found.warnings]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(stream: StreamForecast) -> Table:
    table = Table(title=f"Forecast of {stream.steps:,} steps", box=box.SIMPLE_HEAD)
    table.add_column("source", overflow="fold")
    asked = "asked at first" if stream.scheduled else "asked"
    for heading in (asked, "of tokens", "samples", "tokens", "supervised", "passes", "seen", "steps/pass", "cut"):
        table.add_column(heading, justify="right")
    for source in stream.sources.values():
        table.add_row("/".join((*source.groups[1:], source.name)), *_cells(source, stream))
    return table


def _cells(source: SourceForecast, stream: StreamForecast) -> tuple[str, ...]:
    passes = source.passes
    return (
        f"{source.share:.2%}",
        f"{source.tokens / max(1, stream.tokens):.2%}",
        f"{source.samples:,}",
        f"{source.tokens:,}",
        f"{source.supervised:,}",
        "unknown" if passes is None else f"{passes:,.2f}",
        "unknown" if source.coverage is None else f"{source.coverage:.1%}",
        f"{stream.steps / passes:,.0f}" if passes else "",
        f"{source.cut_share:.1%}" if source.cut else "0",
    )


def _duration(seconds: float) -> str:
    """Seconds as the two largest units."""
    parts: list[str] = []
    left = max(0, round(seconds))
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


_UNITS: Mapping[str, int] = {"d": 86_400, "h": 3600, "min": 60, "s": 1}
