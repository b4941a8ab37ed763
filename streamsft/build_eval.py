"""The sets of a config that the model is evaluated on: tokenized and opened, and made into loaders."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from streamsft.build_sources import Transforms, all_sources, build_held_out, build_source, check_inputs
from streamsft.build_stores import Tokens
from streamsft.config import Config, EvalSetConfig, SourceConfig
from streamsft.config_rules import HELD
from streamsft.encoders import Encoders
from streamsft.engine import Engine
from streamsft.shown import naming
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.evaluation import EvalLoader
from streamsft.training.evaluating import Evaluation
from streamsft.types import Shard

__all__ = ["build_eval_stores", "build_evaluation", "check_eval_inputs", "eval_sources"]

_log = logging.getLogger(__name__)

_BATCH_SIZE = 8


def eval_sources(config: Config) -> dict[str, SourceConfig]:
    """The sets that are sources of their own, by where they are in the config: ``eval.sets.<name>``."""
    sets = config.eval.sets if config.eval else {}
    return {
        f"eval.sets.{name}": SourceConfig(**given.model_dump(exclude_unset=True))
        for name, given in sets.items()
        if isinstance(given, EvalSetConfig)
    }


def check_eval_inputs(config: Config) -> None:
    """See that the local inputs of all sets are there, before the first is tokenized.

    Raises:
        DataError: some are not; all of them are told.
    """
    check_inputs(eval_sources(config), {})


def build_eval_stores(
    config: Config,
    encoders: Encoders,
    *,
    transforms: Transforms | None = None,
    engine: Engine | None = None,
    progress: bool = False,
    verify: bool = False,
) -> dict[str, Tokens]:
    """The rows of each set by its name, tokenized where they are not in the cache yet.

    Those that a streaming source holds out are read and tokenized each time.

    Args:
        config: the config.
        encoders: its tokenizer.
        transforms: functions for the sources of the mix that rows are held out of.
        engine: where to tokenize; by default in processes of this machine.
        progress: draw bars on standard error.
        verify: read stores whole and compare their checksums.

    Raises:
        StreamsftError: rows, the tokenizer or a store cannot be used, or a source holds out none that can.
    """
    stores: dict[str, Tokens] = {}
    own = eval_sources(config)
    for name, given in config.eval.sets.items() if config.eval else ():
        if isinstance(given, str):
            stores[name] = build_held_out(
                given.removesuffix(HELD),
                config,
                encoders,
                transforms=transforms,
                engine=engine,
                progress=progress,
                verify=verify,
            )
            continue
        place = f"eval.sets.{name}"
        with naming(place):
            made = build_source(place, own[place], config, encoders, engine=engine, progress=progress, verify=verify)
        assert not isinstance(made, StreamingSource)
        stores[name] = made
    return stores


def build_evaluation(
    config: Config, stores: Mapping[str, Tokens], encoders: Encoders, *, dp: Shard | None = None
) -> Evaluation | None:
    """What a run of `config` evaluates on the data-parallel rank `dp`; None without sets, or without a model.

    Args:
        config: the config.
        stores: the rows of each set.
        encoders: its tokenizer.
        dp: this rank among the data-parallel ranks.

    Raises:
        StreamsftError: a set has no row that could be evaluated.
    """
    if config.eval is None or not config.eval.sets:
        return None
    if config.train.model == "none":
        _log.info("eval: nothing is evaluated, since train.model is none")
        return None
    sets = {}
    sources = dict(all_sources(config.mix.sources))
    for name, given in config.eval.sets.items():
        rows = sources[given.removesuffix(HELD)] if isinstance(given, str) else given
        sets[name] = EvalLoader(
            stores[name],
            config.sequence_length,
            batch_size=config.eval.batch_size or config.loader.micro_batch_size or _BATCH_SIZE,
            packed=config.eval.packed,
            lookahead=config.packing.lookahead,
            overflow=rows.overflows or config.packing.overflow,
            align=config.packing.align,
            dp=dp,
            pad_id=encoders.pad_id,
        )
    return Evaluation(sets=sets, every=config.eval.every)
