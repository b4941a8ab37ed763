"""What several commands begin with: the sources of a config, made by one rank first, and what is in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from streamsft.build_eval import build_eval_stores
from streamsft.build_sources import BuiltSource, Transforms, build_sources
from streamsft.build_stores import Tokens
from streamsft.comm import Comm, agreeing, patient
from streamsft.config import Config
from streamsft.encoders import Encoders
from streamsft.engine import Engine
from streamsft.sources.store import TokenStore
from streamsft.sources.streaming import StreamingSource
from streamsft.text.rejections import REJECTED_FILE
from streamsft.text.summary import SourceSummary, summary_table

__all__ = ["prepare_eval_stores", "prepare_sources", "print_sources"]

Sources = dict[str, BuiltSource]
Made = TypeVar("Made", bound=dict[str, Any])


def prepare_sources(
    config: Config,
    encoders: Encoders,
    comm: Comm,
    *,
    transforms: Transforms | None = None,
    engine: Engine | None = None,
    verify: bool = False,
) -> Sources:
    """All drawn sources, as stores or ready to be streamed; collective.

    On each machine one rank tokenizes and checks, while the others wait as long as it takes; then they open what it
    made. Without a cache every rank tokenizes for itself.

    Raises:
        StreamsftError: on all ranks, if a source cannot be used on one of them.
    """
    return _one_after_another(build_sources, config, encoders, comm, transforms, engine, verify=verify)


def prepare_eval_stores(
    config: Config,
    encoders: Encoders,
    comm: Comm,
    *,
    transforms: Transforms | None = None,
    engine: Engine | None = None,
    verify: bool = False,
) -> dict[str, Tokens]:
    """The rows of the sets that `config` evaluates, by name of the set; collective, as `prepare_sources`.

    Raises:
        StreamsftError: on all ranks, if a set cannot be used on one of them.
    """
    if config.eval is None or not config.eval.sets:
        return {}
    return _one_after_another(build_eval_stores, config, encoders, comm, transforms, engine, verify=verify)


def _one_after_another(
    build: Callable[..., Made],
    config: Config,
    encoders: Encoders,
    comm: Comm,
    transforms: Transforms | None,
    engine: Engine | None,
    *,
    verify: bool,
) -> Made:
    """What `build` makes, on one rank of each machine, which also verifies it, before it is made on the others."""
    first = not config.cache or int(os.environ.get("LOCAL_RANK", comm.rank)) == 0
    make = partial(
        build, config, encoders, transforms=transforms, engine=engine, progress=comm.rank == 0,
        verify=verify and first,
    )  # fmt: skip
    comm = patient(comm)
    made: Made | None = None
    for mine in (first, not first):
        with agreeing(comm):
            if mine:
                made = make()
    assert made is not None
    return made


def print_sources(console: Console, sources: Mapping[str, BuiltSource], *, places: bool = False) -> None:
    """Print rows, tokens, lengths and rejections of each store, and where rejected rows are listed; and which sources
    are streamed, of which nothing is known yet."""
    stores = {name: source for name, source in sources.items() if not isinstance(source, StreamingSource)}
    if stores:
        console.print(summary_table([SourceSummary.of(store) for store in stores.values()]))
    paths = {name: store.path for name, store in stores.items() if isinstance(store, TokenStore) and store.path}
    _print_lines(console, (f"{name}: {path}" for name, path in paths.items() if places))
    listed = {name: Path(path) / REJECTED_FILE for name, path in paths.items()}
    _print_lines(console, (f"{name}: rejected rows are in {file}" for name, file in listed.items() if file.exists()))
    streamed = [name for name in sources if name not in stores]
    _print_lines(console, (f"{name}: streamed, tokenized as it is drawn" for name in streamed))


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
