"""Doing again what a network has failed, until it works or a deadline is over."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from typing import Final, TypeVar

from streamsft.errors import StoreError

__all__ = ["is_passing", "reason_of", "retried"]

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.1  # seconds; doubled each time, and drawn at random between half of it and all of it
_LONGEST_PAUSE: Final = 10.0
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
    while True:
        try:
            return attempt()
        except StoreError:
            raise
        except Exception as error:
            tries += 1
            if not is_passing(error):
                raise StoreError(
                    f"{what}: cannot be read ({reason_of(error)}); check that it is there and may be read"
                ) from error
            left = deadline - (clock() - begun)
            if left <= 0:
                raise StoreError(
                    f"{what}: could not be read in {deadline:g} s and {tries} attempts ({reason_of(error)}); see that "
                    "the storage answers, then start the same command again: it goes on where it had come to"
                ) from error
            longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(tries - 1, 20))
            pause(min(left, longest * (0.5 + secrets.randbelow(1 << 20) / (1 << 21))))
