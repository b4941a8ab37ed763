"""The rows that a source of a config holds out."""

from __future__ import annotations

from collections.abc import Iterable

from streamsft.build_sources import Transforms, build_held_out
from streamsft.config import ConfigLike, load_config
from streamsft.config_origin import pointing
from streamsft.encoders import Encoders
from streamsft.sources.store import TokenStore
from streamsft.text.workers import LocalEngine

__all__ = ["held_out"]


@pointing
def held_out(
    config: ConfigLike,
    name: str,
    *,
    overrides: Iterable[str] = (),
    transforms: Transforms | None = None,
    processes: int | None = None,
) -> TokenStore:
    """The rows that source `name` keeps from training, tokenized: a finite source named ``<name>.holdout``.

    Args:
        config: a file, a mapping, or a `Config`.
        name: a source with `holdout`.
        overrides: ``key.path=value`` texts laid over it.
        transforms: source name → function from a row to ``input_ids`` and ``loss_mask``, or to None to leave it out.
        processes: processes that tokenize; by default one per core.

    Raises:
        ConfigError: there is no such source, or it holds none out.
        StreamsftError: the source, the tokenizer or a transform cannot be used, or none of the held rows can.
    """
    config = load_config(config, overrides, without_tokenizer=transforms or ())
    engine = LocalEngine(processes)
    return build_held_out(name, config, Encoders(config), transforms=transforms, engine=engine)
