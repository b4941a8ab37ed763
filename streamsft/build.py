"""From a config to objects: sources, mix, loader, metrics. `config` has checked what is said; this only builds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from streamsft.build_sources import BuiltSource
from streamsft.build_stores import Tokens
from streamsft.comm import Comm
from streamsft.config import Config, GroupConfig, SourceConfig
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.metric import Metric
from streamsft.metrics.sinks import GuardedSink, JsonlSink, Sink, TensorBoardSink
from streamsft.sources.base import Source
from streamsft.sources.pairs import SideBySide, holds_pairs
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.interleave import Child, Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.sourcestream import SourceStream
from streamsft.stream.weights import parsed, value_at
from streamsft.text.summary import SourceSummary
from streamsft.training.settings import DATA_METRICS, DPO_METRICS, RUN_METRICS, TrainSettings
from streamsft.types import Shard

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Built", "build", "build_aggregator", "build_mix", "build_packer", "build_settings", "build_sinks"]

_log = logging.getLogger(__name__)

_SHUFFLE_GROUPS = 16


def build_mix(config: Config, sources: Mapping[str, BuiltSource | Source], *, step: int | None = None) -> Interleave:
    """The mix of `config` over its drawn sources. What has weight 0 is left out.

    Args:
        config: the config.
        sources: all drawn sources, by name.
        step: have weights by step stay as they are at this one.
    """

    def node(name: str, nodes: Mapping[str, SourceConfig | GroupConfig]) -> Interleave:
        children: list[Child] = []
        weights: list[Any] = []
        for child, given in nodes.items():
            if not given.drawn:
                continue
            if given.weight is not None:
                weight = parsed(given.weights_by_step, f"weight of {child}")
                weights.append(weight if step is None else value_at(weight, step))
            children.append(node(child, given.sources) if isinstance(given, GroupConfig) else leaf(given, child))
        if len(children) == 1:
            weights = weights or [1.0]  # a streaming source has no number of rows to go by
        return Interleave(children, weights or None, unit=config.mix.unit, name=name, seed=config.seed)

    def leaf(given: SourceConfig, name: str) -> Child:
        source = sources[name]
        if config.packing.pairs == "side_by_side" and holds_pairs(source):
            source = SideBySide(source)
        overflow = given.overflows
        if isinstance(source, StreamingSource) or (given.shuffle == "rows" and overflow is None):
            return source
        groups = (given.shuffle_groups or _SHUFFLE_GROUPS) if given.shuffle == "row_groups" else None
        return SourceStream(
            source, seed=config.seed, shuffle=given.shuffle != "none", shuffle_groups=groups, overflow=overflow
        )

    return node("mix", config.mix.sources)


def build_packer(config: Config, mix: Interleave) -> Packer:
    """The packer of `config` over its mix."""
    packing = config.packing
    return Packer(
        mix, config.sequence_length, lookahead=packing.lookahead, overflow=packing.overflow, align=packing.align
    )


def build_aggregator(config: Config, loader: Loader, metrics: Sequence[Metric], comm: Comm) -> Aggregator:
    """What gathers the metrics of a run of `config`."""
    declared = DPO_METRICS if config.train.loss == "dpo" else RUN_METRICS
    return Aggregator(
        loader.sources,
        metrics,
        DATA_METRICS if config.train.model == "none" else declared,
        builtin=config.metrics.builtin,
        prefix=config.metrics.prefix,
        comm=comm,
    )


def build_settings(config: Config) -> TrainSettings:
    """How to train.

    Raises:
        ConfigError: `train.steps` or `train.run_dir` is missing.
    """
    train = config.train
    for key in ("steps", "run_dir"):
        if getattr(train, key) is None:
            raise ConfigError(f"train.{key}: missing: training needs it")
    assert train.steps is not None
    assert train.run_dir is not None
    return TrainSettings(
        steps=train.steps,
        run_dir=Path(train.run_dir),
        save_every=train.save_every,
        keep=train.keep,
        log_every=config.metrics.log_every,
        micro_batch_size=config.loader.micro_batch_size,
        lr=train.lr,
        warmup=train.warmup,
        weight_decay=train.weight_decay,
        grad_clip=train.grad_clip,
        parallel=train.parallel,
        async_save=train.async_save,
        audit=train.audit,
        seed=config.seed,
        loss=train.loss,
        beta=train.beta,
    )


def build_sinks(config: Config, *, quiet: bool = False, console: Console | None = None) -> list[Sink]:
    """Where the records of a run of `config` are written: metrics.jsonl, the console, and what the config adds.

    Only a failure of metrics.jsonl ends the run; the others are guarded.

    Raises:
        ConfigError: the package of a sink is not installed.
    """
    assert config.train.run_dir is not None
    run_dir = Path(config.train.run_dir)
    sinks: list[Sink] = [JsonlSink(run_dir / "metrics.jsonl", run_dir / "histograms.jsonl")]
    if not quiet:
        from streamsft.metrics.console import ConsoleSink

        sinks.append(GuardedSink(ConsoleSink(console, prefix=config.metrics.prefix), "console"))
    sinks += [GuardedSink(_sink(name, config, run_dir), name) for name in dict.fromkeys(config.metrics.sinks)]
    return sinks


def _sink(name: str, config: Config, run_dir: Path) -> Sink:
    project, record = config.metrics.project, config.model_dump(mode="json")
    match name:
        case "wandb":
            from streamsft.metrics.wandb_sink import WandbSink

            return WandbSink(run_dir, project=project, config=record)
        case "mlflow":
            from streamsft.metrics.mlflow_sink import MlflowSink

            return MlflowSink(run_dir, project=project, config=record)
        case "trackio":
            from streamsft.metrics.trackio_sink import TrackioSink

            return TrackioSink(run_dir, project=project, config=record)
        case _:
            return TensorBoardSink(run_dir / "tensorboard")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A config's pipeline, ready to be iterated.

    Attributes:
        config: what it was built from.
        encoders: the tokenizer and what encodes with it.
        sources: the drawn sources, by name.
        packer: the stage before the loader.
        loader: this rank's batches.
        metrics: the user's metrics.
    """

    config: Config
    encoders: Encoders
    sources: Mapping[str, BuiltSource]
    packer: Packer
    loader: Loader
    metrics: tuple[Metric, ...]

    @property
    def stores(self) -> dict[str, Tokens]:
        """Those of the sources that are stores."""
        return {name: source for name, source in self.sources.items() if not isinstance(source, StreamingSource)}

    @property
    def summaries(self) -> list[SourceSummary]:
        """The size of each store."""
        return [SourceSummary.of(store) for store in self.stores.values()]


def build(
    config: Config,
    sources: Mapping[str, BuiltSource],
    encoders: Encoders,
    *,
    dp: Shard | None = None,
    metrics: Iterable[Metric] = (),
) -> Built:
    """Build the pipeline of `config` over its sources, for the data-parallel rank `dp`.

    Raises:
        StreamsftError: a source has no row that could be drawn, or `dp` does not divide the global batch, or, with a
            streaming source, the lanes.
    """
    for name in _left_out(config.mix.sources):
        _log.info("%s: weight 0, so it is never drawn nor opened", name)
    packer = build_packer(config, build_mix(config, sources))
    metrics = tuple(metrics)
    loader = Loader(
        packer,
        global_batch_size=config.loader.global_batch_size,
        dp=dp,
        workers=config.loader.workers,
        start_method=config.loader.start_method,
        background=config.loader.background,
        timeout=config.loader.timeout,
        lanes_per_step=config.loader.lanes_per_step,
        lane_groups=config.loader.lane_groups,
        balance=config.loader.balance,
        skip_steps=[(first, last) for first, last in config.train.skip_steps],
        metrics=metrics,
        pad_id=encoders.pad_id,
        tokenizer=encoders.tokenizer_hash,
    )
    return Built(config=config, encoders=encoders, sources=sources, packer=packer, loader=loader, metrics=metrics)


def _left_out(nodes: Mapping[str, SourceConfig | GroupConfig]) -> Iterator[str]:
    """The sources and groups of weight 0."""
    for name, node in nodes.items():
        if not node.drawn:
            yield name
        elif isinstance(node, GroupConfig):
            yield from _left_out(node.sources)
