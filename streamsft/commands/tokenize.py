"""``streamsft tokenize``: all sources of a config into the cache, ahead of a run."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from streamsft.build_sources import Transforms
from streamsft.comm import LocalComm
from streamsft.commands.console import make_console
from streamsft.commands.engines import opened_engine
from streamsft.commands.preparing import prepare_eval_stores, prepare_sources, print_sources
from streamsft.config import ConfigLike, load_config
from streamsft.config_origin import pointing
from streamsft.encoders import Encoders
from streamsft.engine import Engine
from streamsft.sources.store import TokenStore

__all__ = ["tokenize"]


@pointing
def tokenize(
    config: ConfigLike,
    *,
    overrides: Iterable[str] = (),
    transforms: Transforms | None = None,
    processes: int | None = None,
    engine: Engine | str = "local",
    address: str | None = None,
    verify: bool = False,
    console: Console | None = None,
) -> dict[str, TokenStore]:
    """Tokenize every source that `config` draws from, where the cache does not have it yet, and print what is in them.
    The sets that it evaluates are tokenized too.

    Whichever engine tokenizes, the stores are the same. Each appears once it is whole; a call that was stopped before
    has published what it tokenized in parts, and the next one goes on behind them.

    Sources with `streaming: true` are opened alone, for they are tokenized as they are drawn.

    Args:
        config: a file, a mapping, or a `Config`.
        overrides: ``key.path=value`` texts laid over it.
        transforms: source name → function from a row to ``input_ids`` and ``loss_mask``, or to None to leave it out.
            The cache knows it by its source text and what it uses of its own module, or by its `version` attribute
            alone: raise that when code of other modules that it calls changes.
        processes: processes that tokenize; by default one per core; with Ray workers, by default one per core of
            the cluster.
        engine: ``local`` tokenizes on this machine, ``ray`` on a Ray cluster; or an `Engine`, whose `Engine.done` then
            tells what was there already.
        address: of a running Ray cluster; by default one is started on this machine.
        verify: read the stores whole and compare their checksums.
        console: where to print; standard output by default.

    Returns:
        The stores that are drawn from, by name.

    Raises:
        StreamsftError: what can be mended.
    """
    config = load_config(config, overrides, without_tokenizer=transforms or ())
    encoders, comm = Encoders(config), LocalComm()
    with opened_engine(engine, address=address, processes=processes) as working:
        sources = prepare_sources(config, encoders, comm, transforms=transforms, engine=working, verify=verify)
        sets = prepare_eval_stores(config, encoders, comm, transforms=transforms, engine=working, verify=verify)
    print_sources(console or make_console(), {**sources, **{store.name: store for store in sets.values()}}, places=True)
    return {name: source for name, source in sources.items() if isinstance(source, TokenStore)}
