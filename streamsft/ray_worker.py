"""What a worker of a Ray cluster does, and which versions it does it with."""

from __future__ import annotations

import os
from importlib import metadata
from typing import Any, Final

from streamsft.engine import Job, attempted
from streamsft.errors import ConfigError

__all__ = ["Worker", "check_versions"]

_PACKAGES: Final = ("tokenizers", "transformers", "jinja2", "pyarrow", "numpy")


def _versions() -> dict[str, str]:
    """The versions of what decides about tokens, here."""
    from streamsft import __version__

    return {"streamsft": __version__, **{name: metadata.version(name) for name in _PACKAGES}}


class Worker:
    """An actor with one core: it holds a job, and works on one item at a time."""

    def __init__(self) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # an actor has one core

    def take(self, job: Job[Any, Any]) -> dict[str, str]:
        """Hold another job; what decides about tokens here, and its versions."""
        self._job = job
        return _versions()

    def run(self, item: Any) -> tuple[bool, Any]:
        """What the job makes of an item, or its error; see `attempted`."""
        return attempted(self._job, item)


def check_versions(found: dict[str, str]) -> None:
    """Refuse a worker that could make other tokens.

    Raises:
        ConfigError: it has other versions than this process.
    """
    wanted = _versions()
    others = [
        f"{name} {found.get(name)} instead of {wanted[name]}" for name in wanted if found.get(name) != wanted[name]
    ]
    if others:
        raise ConfigError(
            f"engine ray: a machine of the cluster has {', '.join(others)}; install the same versions on all of them, "
            "for others could make other tokens"
        )
