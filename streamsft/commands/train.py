"""``streamsft train``: a config's run, from raw files to a trained model, resumed where it was stopped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamsft.build import build, build_aggregator, build_settings, build_sinks
from streamsft.build_sources import Transforms
from streamsft.comm import Comm, LocalComm, agreeing, connect, current, disconnect
from streamsft.commands.console import make_console
from streamsft.commands.preparing import prepare_sources, print_sources
from streamsft.config import ConfigLike, load_config
from streamsft.encoders import Encoders
from streamsft.metrics.metric import Metric
from streamsft.training.loop import train as train_loop
from streamsft.training.settings import TrainResult
from streamsft.types import Shard

__all__ = ["train"]


def train(
    config: ConfigLike,
    *,
    overrides: Iterable[str] = (),
    transforms: Transforms | None = None,
    metrics: Sequence[Metric] = (),
    fresh: bool = False,
    verify: bool = False,
    quiet: bool = False,
) -> TrainResult:
    """Train as `config` says, going on from the run directory's newest checkpoint if there is one.

    Below ``torchrun`` every rank calls it, and joins the process group if that is not done yet. Rank 0 prints the
    sources, the pipeline and, at log steps, the metrics.

    Args:
        config: a file, a mapping, or a `Config`.
        overrides: ``key.path=value`` texts laid over it.
        transforms: source name → function from a row to ``input_ids`` and ``loss_mask``, or to None to leave it out.
        metrics: numbers to take of each sample.
        fresh: move an earlier run aside and start at step 1.
        verify: read token stores whole and compare their checksums first.
        quiet: print nothing.

    Raises:
        StreamsftError: what can be mended; on all ranks.
    """
    joined = isinstance(current(), LocalComm)
    comm = connect()
    result = _train(config, comm, overrides, transforms, metrics, fresh=fresh, verify=verify, quiet=quiet)
    if joined:
        disconnect()
    return result


def _train(
    config: ConfigLike,
    comm: Comm,
    overrides: Iterable[str],
    transforms: Transforms | None,
    metrics: Sequence[Metric],
    *,
    fresh: bool,
    verify: bool,
    quiet: bool,
) -> TrainResult:
    with agreeing(comm):
        config = load_config(config, overrides, without_tokenizer=transforms or ())
        settings = build_settings(config)
    encoders = Encoders(config)
    sources = prepare_sources(config, encoders, comm, transforms=transforms, verify=verify)
    with agreeing(comm):
        built = build(config, sources, encoders, dp=Shard(comm.rank, comm.size), metrics=metrics)
        aggregator = build_aggregator(config, built.loader, metrics, comm)
    if comm.rank == 0 and not quiet:
        console = make_console()
        print_sources(console, sources)
        console.print(str(built.loader.info), markup=False, highlight=False, soft_wrap=True)
    result = train_loop(
        built.loader,
        config.train.model,
        settings=settings,
        aggregator=aggregator,
        sinks=lambda: build_sinks(config, quiet=quiet),
        comm=comm,
        fresh=fresh,
        vocabulary=encoders.vocabulary,
        config_record=config.model_dump(),
    )
    if comm.rank == 0 and not quiet:
        make_console().print(result.message, markup=False, highlight=False, soft_wrap=True)
    return result
