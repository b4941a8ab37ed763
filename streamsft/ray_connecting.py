"""The way to a Ray cluster: one that runs, or one that is started on this machine."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final, final
from urllib.parse import urlsplit

from streamsft.errors import ConfigError, DataError

__all__ = ["Lifeline", "connect"]

_REACH_SECONDS: Final = 10.0
_PATIENCE: Final = "RAY_gcs_server_port_wait_time_s"
"""How often Ray tries to reach a cluster: 20 times by default, of 40 s each."""
_LOOK_SECONDS: Final = 2.0
_MEND: Final = (
    "Start one with `ray start --head` and name it by --address, with the version of Ray that is installed here"
)
_TOKEN: Final = "Where it asks for a token, set RAY_AUTH_MODE=token and have that in ~/.ray/auth_token"

logger = logging.getLogger("streamsft")


def connect(ray: Any, address: str | None, workers: int | None) -> None:
    """Connect to the cluster at `address`, or start one on this machine.

    Raises:
        ConfigError: nothing answers there, or it is no cluster of this version; or none can be started.
    """
    local: dict[str, Any] = {"include_dashboard": False, "num_cpus": workers} if address is None else {}
    if address is not None:
        _check_reached(address)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with _impatient() if address is not None else nullcontext():
            ray.init(address=address or "local", logging_level=logging.WARNING, log_to_driver=False, **local)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        if address is None:
            raise ConfigError(f"engine ray: a cluster on this machine cannot be started: {error}") from error
        raise ConfigError(f"engine ray: {address} cannot be reached: {error}. {_MEND}. {_TOKEN}") from error
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray sets one that ends the process with another exit code


def _check_reached(address: str) -> None:
    """Refuse an address at which nobody listens, for which Ray would wait for minutes."""
    tried = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    try:
        place = urlsplit(f"//{tried.removeprefix('ray://')}")
        host, port = place.hostname, place.port
    except ValueError as error:
        raise ConfigError(f"engine ray: address {tried}: {error}; give HOST:PORT, ray://HOST:PORT or auto") from error
    if host is None or port is None:
        return  # Ray knows what it means
    try:
        socket.create_connection((host, port), timeout=_REACH_SECONDS).close()
    except OSError as error:
        given = f"{address}, which is RAY_ADDRESS={tried}," if tried != address else tried
        raise ConfigError(
            f"engine ray: {given} cannot be reached: no connection to port {port} of {host} could be made within "
            f"{_REACH_SECONDS:g} s ({error.strerror or error}). {_MEND}"
        ) from error


@contextmanager
def _impatient() -> Iterator[None]:
    """Have Ray try once; with a port that is no cluster's that takes it 40 s."""
    if _PATIENCE in os.environ:
        yield
        return
    os.environ[_PATIENCE] = "1"
    try:
        yield
    finally:
        del os.environ[_PATIENCE]


@final
class Lifeline:
    """Sees that Ray's process on this machine, the raylet, is there.

    When it dies, Ray ends the processes that are connected to it, 15 s later and without a word.
    """

    def __init__(self, ray: Any) -> None:
        self._place: tuple[str, int] | None = None
        self._next = 0.0
        if not ray.util.client.ray.is_connected():  # else it is another machine's
            here = ray.get_runtime_context().get_node_id()
            node = next(node for node in ray.nodes() if node["NodeID"] == here)
            self._place = node["NodeManagerAddress"], node["NodeManagerPort"]

    def check(self, what: str) -> None:
        """Look every few seconds.

        Raises:
            DataError: it is gone.
        """
        if self._place is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LOOK_SECONDS
        try:
            socket.create_connection(self._place, timeout=_REACH_SECONDS).close()
        except ConnectionRefusedError as error:
            raise DataError(
                f"{what}: Ray's process on this machine (raylet) has ended; it may have been killed for want of "
                "memory. What was published is kept: start the same command again, and it goes on behind it"
            ) from error
        except OSError as error:
            logger.warning("%s: Ray's process on this machine (raylet) does not answer: %s", what, error)
