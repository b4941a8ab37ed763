"""Doing again what a network has failed, until it works or a deadline is over."""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar, final

from streamsft.errors import StoreError
from streamsft.sources.forkgate import OfProcess

__all__ = ["is_passing", "reason_of", "retried"]

logger = logging.getLogger("streamsft")

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.1  # seconds; doubled each time, and drawn at random between half of it and all of it
_LONGEST_PAUSE: Final = 10.0
_TELL_SECONDS: Final = 10.0
_TELL_AGAIN_SECONDS: Final = 30.0  # of this or anything else: what is read at the same time fails for the same reason
_LASTING: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_REFUSED: Final = re.compile(
    r"AWS Error (ACCESS_DENIED|NO_SUCH_BUCKET|NO_SUCH_KEY|RESOURCE_NOT_FOUND|INVALID_ACCESS_KEY_ID|"
    r"INVALID_CLIENT_TOKEN_ID|UNRECOGNIZED_CLIENT|SIGNATURE_DOES_NOT_MATCH|MISSING_AUTHENTICATION_TOKEN)\b"
)  # pyarrow's words for what S3 will not do, however often it is asked
_NETWORK: Final = ("aiohttp", "requests", "urllib3", "botocore", "google", "azure")
_QUERY: Final = re.compile(r"\?[^\s'\"]*")


def is_passing(error: Exception) -> bool:
    """Whether an error may be over when the same is tried again: not so for what is missing, or may not be read."""
    if isinstance(error, _LASTING) or _REFUSED.search(str(error)):
        return False
    return isinstance(error, OSError | EOFError) or type(error).__module__.split(".")[0] in _NETWORK


def reason_of(error: BaseException) -> str:
    """What an error says, on one line, without the query of an address, which may hold a signature."""
    first = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {_QUERY.sub('', first[0])}"


def retried(
    attempt: Callable[[], T],
    what: str,
    deadline: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """What `attempt` returns, tried until it succeeds; pauses grow, and differ between those who retry together.

    Args:
        attempt: what to do.
        what: the name of what is read, for messages.
        deadline: seconds after which no further attempt is begun.
        clock: seconds from any moment.
        pause: waits for so many seconds.

    Raises:
        StoreError: it failed for good, or until the deadline; names `what`, and says why.
    """
    begun, tries = clock(), 0
    with _slow.watching(what, deadline) as read:
        while True:
            try:
                return attempt()
            except StoreError:
                raise
            except Exception as error:
                tries, read.reason = tries + 1, f", {reason_of(error)}"
                if not is_passing(error):
                    raise StoreError(
                        f"{what}: cannot be read ({reason_of(error)}); check that it is there and may be read"
                    ) from error
                left = deadline - (clock() - begun)
                if left <= 0:
                    raise StoreError(
                        f"{what}: could not be read in {deadline:g} s and {tries} attempts ({reason_of(error)}); see "
                        "that the storage answers, then start the same command again: it goes on where it had come to"
                    ) from error
                longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(tries - 1, 20))
                pause(min(left, longest * (0.5 + secrets.randbelow(1 << 20) / (1 << 21))))


@final
class _Read:
    """Something that is being read.

    Args:
        what: its name.
        deadline: seconds that it is tried for.
    """

    def __init__(self, what: str, deadline: float) -> None:
        self.what = what
        self.deadline = deadline
        self.begun = time.monotonic()
        self.reason = ""


@final
class _SlowReads(OfProcess):
    """Has the log say what takes long, for a first attempt alone may take a minute to fail; one thread watches all."""

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._reads: dict[_Read, None] = {}  # the oldest first
        self._watched = False
        self._told_at = float("-inf")

    @contextmanager
    def watching(self, what: str, deadline: float) -> Iterator[_Read]:
        """What is done meanwhile reads `what`."""
        self._begin_here()
        read = _Read(what, deadline)
        with self._lock:
            self._reads[read] = None
            if not self._watched:
                with suppress(RuntimeError):  # no more threads can be had: what is slow is told of later, or not at all
                    threading.Thread(target=self._watch, name="streamsft-waiting", daemon=True).start()
                    self._watched = True
        try:
            yield read
        finally:
            with self._lock:
                self._reads.pop(read, None)

    def _watch(self) -> None:
        """Look at the oldest read whenever it may have become a slow one, until there is none."""
        while True:
            with self._lock:
                read = next(iter(self._reads), None)
                if read is None:
                    self._watched = False
                    return
                left = read.begun + _TELL_SECONDS - time.monotonic()
                if left <= 0:
                    del self._reads[read]
            if left > 0:
                time.sleep(left)
            elif time.monotonic() >= self._told_at + _TELL_AGAIN_SECONDS:
                self._told_at = time.monotonic()
                left = read.deadline - _TELL_SECONDS
                further = f"it is tried again for up to {left:.0f} s more" if left > 0 else "this attempt is the last"
                logger.warning("%s: not read in %g s%s; %s", read.what, _TELL_SECONDS, read.reason, further)


_slow: Final = _SlowReads()
