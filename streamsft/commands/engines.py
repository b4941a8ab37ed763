"""The engine that a command line names."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from streamsft.engine import Engine
from streamsft.errors import ConfigError
from streamsft.text.workers import LocalEngine

__all__ = ["ENGINES", "opened_engine"]

ENGINES = ("local", "ray")


def opened_engine(
    engine: Engine | str, *, address: str | None = None, processes: int | None = None
) -> AbstractContextManager[Engine]:
    """An engine for a block, at the end of which its workers end; one that is given as an object goes on.

    Args:
        engine: ``local``, ``ray``, or an engine.
        address: of a running Ray cluster; by default one is started on this machine.
        processes: workers; by default one per core.

    Raises:
        ConfigError: there is no such engine, it is not installed, or what is given does not go with it.
    """
    if isinstance(engine, Engine):
        if processes is not None or address is not None:
            raise ConfigError("engine: what is given has its own workers; leave processes and address out")
        return nullcontext(engine)
    if engine not in ENGINES:
        raise ConfigError(f"engine: {engine!r}; use {' or '.join(ENGINES)}")
    if engine == "ray":
        from streamsft.ray_engine import RayEngine

        return RayEngine(address, processes)
    if address is not None:
        raise ConfigError(f"address: {address!r} is of a Ray cluster; add engine ray, or leave it out")
    return LocalEngine(processes)
