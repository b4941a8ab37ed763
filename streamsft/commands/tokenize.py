"""``streamsft tokenize``: all sources of a config into the cache, ahead of a run."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from streamsft.build_sources import Transforms
from streamsft.comm import LocalComm
from streamsft.commands.console import make_console
from streamsft.commands.preparing import prepare_eval_stores, prepare_sources, print_sources
from streamsft.config import ConfigLike, load_config
from streamsft.config_origin import pointing
from streamsft.encoders import Encoders
from streamsft.sources.store import TokenStore

__all__ = ["tokenize"]


@pointing
def tokenize(
    config: ConfigLike,
    *,
    overrides: Iterable[str] = (),
    transforms: Transforms | None = None,
    processes: int | None = None,
    verify: bool = False,
    console: Console | None = None,
) -> dict[str, TokenStore]:
    """Tokenize every source that `config` draws from, where the cache does not have it yet, and print what is in them.
    The sets that it evaluates are tokenized too.

    Sources with `streaming: true` are opened alone, for they are tokenized as they are drawn.

    Args:
        config: a file, a mapping, or a `Config`.
        overrides: ``key.path=value`` texts laid over it.
        transforms: source name → function from a row to ``input_ids`` and ``loss_mask``, or to None to leave it out.
            The cache knows it by its source text and what it uses of its own module, or by its `version` attribute
            alone: raise that when code of other modules that it calls changes.
        processes: processes that tokenize; by default one per core.
        verify: read the stores whole and compare their checksums.
        console: where to print; standard output by default.

    Returns:
        The stores that are drawn from, by name.

    Raises:
        StreamsftError: what can be mended.
    """
    config = load_config(config, overrides, without_tokenizer=transforms or ())
    encoders = Encoders(config)
    sources = prepare_sources(config, encoders, LocalComm(), transforms=transforms, processes=processes, verify=verify)
    sets = prepare_eval_stores(config, encoders, LocalComm(), transforms=transforms, processes=processes, verify=verify)
    print_sources(console or make_console(), {**sources, **{store.name: store for store in sets.values()}}, places=True)
    return {name: source for name, source in sources.items() if isinstance(source, TokenStore)}
