"""Ports that nobody else is given."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held_port"]


@contextmanager
def held_port() -> Iterator[int]:
    """A port of 127.0.0.1 on which nobody listens.

    Meanwhile the system gives it to no other process. Who asks for it by its number, and reuses addresses, as the
    stores of torch do, may listen on it.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
