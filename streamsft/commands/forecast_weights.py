"""Weights that make a run go through each source so often."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from streamsft.build import build
from streamsft.build_sources import BuiltSource, drawn_sources
from streamsft.config import Config, GroupConfig, SourceConfig
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError
from streamsft.stream.forecasting import forecast_stream

__all__ = ["reweighted", "wanted_passes", "weight_lines"]

Nodes: TypeAlias = "Mapping[str, SourceConfig | GroupConfig]"

_PROBED = 20  # steps that are packed to see how much a step takes


def wanted_passes(config: Config, text: str) -> dict[str, float]:
    """Read ``passes=3`` or ``passes=3,identity=1``: how often to go through each drawn source of `config`.

    Raises:
        ConfigError: it is not of that form, names an unknown source, or leaves one without a number.
    """
    where = f"--weights-for {text}"
    names = list(drawn_sources(config))
    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        if name not in ("passes", *names):
            near = difflib.get_close_matches(name, ("passes", *names), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the config draws {', '.join(names)}"
            raise ConfigError(f"{where}: {name!r} is neither passes nor a source; {hint}")
        try:
            given[name] = float(number)
        except ValueError:
            given[name] = 0.0
        if not equals or not 0 < given[name] < float("inf"):
            raise ConfigError(f"{where}: {part.strip()!r} is not a name and a number above 0, such as passes=3")
    missing = [name for name in names if name not in given and "passes" not in given]
    if missing:
        raise ConfigError(f"{where}: {', '.join(missing)} without a number; begin with passes=N for all the others")
    return {name: given.get(name, given.get("passes", 0.0)) for name in names}


def reweighted(
    config: Config, sources: Mapping[str, BuiltSource], encoders: Encoders, wanted: Mapping[str, float]
) -> tuple[Config, int]:
    """`config` with weights that go through each source so often, and the steps that it takes.

    Raises:
        ConfigError: a source streams, so that the size of a pass is unknown.
    """
    loader = build(config, sources, encoders).loader
    streaming = [leaf.name for leaf in loader.packer.mixture.leaves if leaf.streams]
    if streaming:
        raise ConfigError(f"--weights-for: how many rows {', '.join(streaming)} has is unknown until it is read")
    draws = {leaf.name: wanted[leaf.name] * leaf.rows for leaf in loader.packer.mixture.leaves}
    flat = _weighted(config, draws)
    probe = forecast_stream(build(flat, sources, encoders).loader, _PROBED)
    per_draw = {name: source.tokens / source.samples for name, source in probe.sources.items() if source.samples}
    if config.mix.unit == "tokens":
        draws_in_tokens = {name: count * per_draw.get(name, 1.0) for name, count in draws.items()}
        flat = _weighted(config, draws_in_tokens)
        probe = forecast_stream(build(flat, sources, encoders).loader, _PROBED)
    steps = max(1, round(_PROBED * sum(draws.values()) / probe.samples))
    found = forecast_stream(build(flat, sources, encoders).loader, steps)
    return flat, max(1, round(steps * sum(draws.values()) / found.samples))


def _weighted(config: Config, draws: Mapping[str, float]) -> Config:
    """`config` with a weight for each source in proportion to `draws`, and for each group the sum of those in it."""
    top = max(draws.values())

    def total(node: SourceConfig | GroupConfig, name: str) -> float:
        if isinstance(node, GroupConfig):
            return sum(total(child, below) for below, child in node.sources.items())
        return draws.get(name, 0.0)

    def changed(nodes: Nodes) -> dict[str, SourceConfig | GroupConfig]:
        result: dict[str, SourceConfig | GroupConfig] = {}
        for name, node in nodes.items():
            update: dict[str, object] = {"weight": float(f"{total(node, name) / top:.6g}")}
            if isinstance(node, GroupConfig):
                update["sources"] = changed(node.sources)
            result[name] = node.model_copy(update=update)
        return result

    mix = config.mix.model_copy(update={"sources": changed(config.mix.sources)})
    return config.model_copy(update={"mix": mix})


def weight_lines(config: Config, steps: int) -> tuple[str, ...]:
    """The weights of `config` as lines of a config file, and the steps that they are for."""

    def below(nodes: Nodes, indent: str) -> Iterator[str]:
        for name, node in nodes.items():
            if isinstance(node, GroupConfig):
                yield f"{indent}{name}:"
                yield f"{indent}  weight: {node.weight:g}"
                yield f"{indent}  sources:"
                yield from below(node.sources, indent + "    ")
            else:
                yield f"{indent}{name}: {{weight: {node.weight:g}}}"

    return ("mix:", "  sources:", *below(config.mix.sources, "    "), "train:", f"  steps: {steps}")
