"""What can be seen to be wrong with a run before any row of it is tokenized."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from streamsft.build import build_mix, build_sinks
from streamsft.build_eval import check_eval_inputs
from streamsft.build_former import mix_record
from streamsft.build_sources import Transforms, check_inputs, check_transforms, drawn_sources
from streamsft.comm import Comm
from streamsft.config import Config, GroupConfig, SourceConfig
from streamsft.encoders import Encoders
from streamsft.errors import DataError
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.metric import Metric, checked_metrics
from streamsft.metrics.stats import SourceInfo
from streamsft.stream.mixture import Mixture
from streamsft.stream.packing import Packing
from streamsft.stream.plan import Plan
from streamsft.stream.state import describe_plan
from streamsft.stream.stretches import checked_stretches
from streamsft.stream.topology import Topology
from streamsft.stream.workers import check_picklable, check_workers
from streamsft.training.ahead import check_run
from streamsft.types import Bools, Int32s, Ints, Shard

__all__ = ["check_ahead", "check_sizes", "packing_of"]


def check_ahead(
    config: Config,
    encoders: Encoders,
    comm: Comm,
    *,
    transforms: Transforms,
    metrics: Sequence[Metric] = (),
    fresh: bool = False,
    accept_changes: bool = False,
) -> None:
    """Refuse a run that would be refused later, as far as that can be known without tokens. Has no collectives.

    Looked at are the sizes of batch, ranks, workers and lanes; metrics and sinks; the model's name; the formats of
    local files; and on rank 0 whether the run directory is free and holds a run of this stream.

    Raises:
        StreamsftError: what can be mended.
    """
    check_transforms(config, transforms)
    topology = check_sizes(config, Shard(comm.rank, comm.size))
    outline = _outline(config)
    plan = Plan(outline, seed=config.seed, packing=packing_of(config), lanes=1)
    _check_metrics(config, plan, metrics)
    if comm.rank:
        return
    check_inputs(drawn_sources(config), transforms)
    check_eval_inputs(config)
    for sink in build_sinks(config, quiet=True):
        sink.close()
    fingerprint = {
        **describe_plan(plan),
        "lanes": [topology.lanes_per_step, topology.lane_groups],
        "tokenizer": encoders.tokenizer_hash,
    }
    check_run(
        Path(str(config.train.run_dir)),
        _with_unknowns(json.loads(json.dumps(fingerprint)), config),
        model=config.train.model,
        mix=mix_record(config, {}, transforms)["mix"],
        fresh=fresh,
        accept_changes=accept_changes,
    )


def packing_of(config: Config) -> Packing:
    """How documents are packed, but for sources with an overflow policy of their own."""
    return Packing(
        sequence_length=config.sequence_length,
        lookahead=config.packing.lookahead,
        overflow=config.packing.overflow,
        align=config.packing.align,
    )


def check_sizes(config: Config, dp: Shard | None = None) -> Topology:
    """How steps are made of lanes and shared among ranks, if batch, ranks, workers and lanes go together, and so do
    packs and what documents take of them.

    Raises:
        ConfigError: they do not; the message has the values that do.
    """
    loader = config.loader
    check_workers(loader.workers, loader.start_method, timeout=loader.timeout)
    checked_stretches(config.train.skip_steps)
    packing_of(config)
    owned = any(map(_is_owned, drawn_sources(config).values()))
    topology = Topology.of(
        loader.global_batch_size,
        dp or Shard(),
        loader.lanes_per_step,
        loader.lane_groups,
        loader.balance,
        owned=owned,
    )
    if owned:
        topology.check_owners(loader.workers)
    return topology


def _outline(config: Config) -> Mixture:
    """The mix of `config` over sources that stand for those to come."""
    return build_mix(config, {name: _Unread(name) for name in drawn_sources(config)}).mixture(None)


def _check_metrics(config: Config, plan: Plan, metrics: Sequence[Metric]) -> None:
    checked = checked_metrics(metrics, "metrics")
    if config.loader.workers and checked:
        check_picklable("metric", {metric.name: metric for metric in checked})
    sources = [SourceInfo(name=leaf.name, groups=leaf.groups, weight=leaf.share, rows=1) for leaf in plan.leaves]
    Aggregator(sources, checked, builtin=config.metrics.builtin, prefix=config.metrics.prefix)


def _with_unknowns(fingerprint: dict[str, Any], config: Config) -> dict[str, Any]:
    """`fingerprint` with None for what follows from rows: contents, and shares where weights are not given."""
    shares = _weighted(config.mix.sources)
    unknown = {name for name, source in drawn_sources(config).items() if _is_owned(source)}
    for name, entry in fingerprint["sources"].items():
        order = [None] if name in unknown else entry[2:]
        fingerprint["sources"][name] = [None, entry[1] if shares else None, *order]
    return fingerprint


def _is_owned(source: SourceConfig) -> bool:
    """Whether one process alone may read each lane's part of a source; its order then follows from its files too."""
    return source.streaming or source.shuffle == "row_groups"


def _weighted(nodes: Mapping[str, SourceConfig | GroupConfig]) -> bool:
    """Whether all shares follow from weights."""
    if len(nodes) > 1 and any(node.weight is None for node in nodes.values()):
        return False
    return all(_weighted(node.sources) for node in nodes.values() if isinstance(node, GroupConfig))


@final
class _Unread:
    """Stands for a source whose rows are not known yet: one that could be drawn."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fingerprint = ""
        self.lengths: Int32s = np.array([2], np.int32)
        self.supervised: Int32s = np.array([1], np.int32)
        self.first_supervised: Int32s = np.array([1], np.int32)
        self.row_numbers: Ints = np.zeros(1, np.int64)
        self.group_bounds: Ints = np.array([0, 1], np.int64)

    def __len__(self) -> int:
        return 1

    def read(self, index: Ints) -> tuple[Sequence[Int32s], Sequence[Bools]]:
        raise DataError(f"source {self.name}: its rows are not read yet")

    def origin(self, index: int) -> str:
        return f"{self.name}:{index}"

    def expect(self, reader: int, groups: Iterable[tuple[int, int]]) -> None:
        pass
