"""``streamsft train``: a config's run, from raw files to a trained model, resumed where it was stopped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from streamsft.build import build, build_aggregator, build_mix, build_packer, build_settings, build_sinks
from streamsft.build_ahead import check_ahead
from streamsft.build_eval import build_evaluation
from streamsft.build_former import former_config, mix_record
from streamsft.build_sources import Transforms, all_sources
from streamsft.comm import Comm, LocalComm, agreeing, connect, current, disconnect
from streamsft.commands.alike import check_alike, check_shared
from streamsft.commands.console import make_console
from streamsft.commands.preparing import prepare_eval_stores, prepare_sources, print_sources
from streamsft.config import Config, ConfigLike, load_config
from streamsft.config_origin import pointing
from streamsft.encoders import Encoders
from streamsft.errors import StreamsftError
from streamsft.metrics.metric import Metric
from streamsft.sources.vocabulary import ids_in
from streamsft.stream.packer import Packer
from streamsft.training.loop import train as train_loop
from streamsft.training.settings import TrainResult
from streamsft.types import Shard

__all__ = ["train"]

_TINY_IDS = 1 << 21
"""Token ids that ``tiny`` may have: more than tokenizers have, and a GiB of embeddings."""


@pointing
def train(
    config: ConfigLike,
    *,
    overrides: Iterable[str] = (),
    transforms: Transforms | None = None,
    metrics: Sequence[Metric] = (),
    fresh: bool = False,
    accept_changes: bool = False,
    verify: bool = False,
    quiet: bool = False,
    console: Console | None = None,
) -> TrainResult:
    """Train as `config` says, going on from the run directory's newest checkpoint if there is one.

    Below ``torchrun`` every rank calls it, and joins the process group if that is not done yet. Rank 0 prints the
    sources, the pipeline and, at log steps, the metrics.

    Args:
        config: a file, a mapping, or a `Config`.
        overrides: ``key.path=value`` texts laid over it.
        transforms: source name → function from a row to ``input_ids`` and ``loss_mask``, or to None to leave it out.
            The cache knows it by its source text and what it uses of its own module, or by its `version` attribute
            alone: raise that when code of other modules that it calls changes.
        metrics: numbers to take of each sample.
        fresh: move an earlier run aside and start at step 1.
        accept_changes: go on although sources were added, removed, changed or weighted otherwise since the checkpoint.
            Windows that are open are finished under the mix before, whose sources must be readable until then;
            `transforms` may have functions of sources that were removed.
        verify: read token stores whole and compare their checksums first.
        quiet: print no tables: only a line when the run begins and when it ends, beside what is logged.
        console: where to print; standard output by default.

    Raises:
        StreamsftError: what can be mended; on all ranks.
    """
    joined = isinstance(current(), LocalComm)
    comm = connect()
    result = _train(
        config,
        comm,
        overrides,
        transforms or {},
        metrics,
        fresh=fresh,
        accept_changes=accept_changes,
        verify=verify,
        quiet=quiet,
        console=console or make_console(),
    )
    if joined:
        disconnect()
    return result


def _train(
    config: ConfigLike,
    comm: Comm,
    overrides: Iterable[str],
    transforms: Transforms,
    metrics: Sequence[Metric],
    *,
    fresh: bool,
    accept_changes: bool,
    verify: bool,
    quiet: bool,
    console: Console,
) -> TrainResult:
    with agreeing(comm):
        config = load_config(config, overrides, without_tokenizer=transforms)
        settings = build_settings(config)
    check_alike(config, {"--fresh": fresh, "--accept-changes": accept_changes}, comm)
    with agreeing(comm):
        ours = transforms
        if accept_changes:  # the others may be of sources that were removed
            ours = {name: transforms[name] for name, _ in all_sources(config.mix.sources) if name in transforms}
        encoders = Encoders(config)
        check_ahead(
            config, encoders, comm, transforms=ours, metrics=metrics, fresh=fresh, accept_changes=accept_changes
        )
    check_shared(settings.run_dir, comm)
    if comm.rank == 0:
        _print(console, f"train: {settings.steps:,} steps, in {settings.run_dir}")
    sources = prepare_sources(config, encoders, comm, transforms=ours, verify=verify)
    sets = prepare_eval_stores(config, encoders, comm, transforms=ours, verify=verify)
    with agreeing(comm):
        dp = Shard(comm.rank, comm.size)
        built = build(config, sources, encoders, dp=dp, metrics=metrics)
        evaluation = build_evaluation(config, sets, encoders, dp=dp)
    if comm.rank == 0 and not quiet:
        print_sources(console, {**sources, **{store.name: store for store in sets.values()}})
        _print(console, str(built.loader.info))
    result = train_loop(
        built.loader,
        config.train.model,
        settings=settings,
        aggregator=lambda: build_aggregator(config, built.loader, metrics, comm),
        sinks=lambda: build_sinks(config, quiet=quiet, console=console),
        comm=comm,
        fresh=fresh,
        vocabulary=encoders.vocabulary or ids_in(sources, most=_TINY_IDS if config.train.model == "tiny" else None),
        config_record=config.model_dump(),
        mix_record=mix_record(config, sources, ours),
        accept_changes=accept_changes,
        rebuild=lambda record: _former(config, record, encoders, transforms, comm),
        evaluation=evaluation,
    )
    if comm.rank == 0:
        _print(console, result.message)
    return result


def _print(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _former(
    config: Config, record: Mapping[str, Any], encoders: Encoders, transforms: Transforms, comm: Comm
) -> Packer:
    """The packer of the mix that a run had before an edit; collective."""
    try:
        with agreeing(comm):
            former = former_config(config, record, transforms)
        stores = {name for name, source in all_sources(former.mix.sources) if source.store is not None}
        known = {name: transforms[name] for name in record["transforms"] if name not in stores}
        sources = prepare_sources(former, encoders, comm, transforms=known)
        with agreeing(comm):
            return build_packer(former, build_mix(former, sources))
    except StreamsftError as error:
        error.add_note("It is of the mix before the edit, and needed until the windows that are open of that are done.")
        raise
