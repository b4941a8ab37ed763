"""Loaders that are handed to what would iterate them wrongly."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from streamsft.errors import ConfigError

if TYPE_CHECKING:
    from streamsft.stream.loader import Loader

__all__ = ["Endless", "refuse_begun", "refuse_frameworks"]

_LIGHTNING = frozenset({"lightning", "pytorch_lightning"})


class Endless:
    """A loader without a length, which is true all the same."""

    def __len__(self) -> int:
        """There is none.

        Raises:
            TypeError: as of anything that has no length; what asks without need, such as ``list`` and progress bars,
                goes on then.
        """
        raise TypeError(
            f"a {type(self).__name__} has no length, for the stream has no end, and what it yields are whole batches, "
            "made by its own thread or workers (workers=); iterate it itself, and do not wrap it in a torch DataLoader"
        )

    def __bool__(self) -> bool:
        return True


def refuse_begun(loader: Loader) -> None:
    """Refuse a loader that was iterated where a loop is about to train on all that it yields.

    Raises:
        ConfigError: it was.
    """
    if loader.begun:
        raise ConfigError(
            f"Loader: it was iterated before, up to step {loader.step}, and this loop would leave out what was handed "
            "out then; give it a new Loader, which goes on behind those steps if it is to by "
            "new.load_state_dict(loader.state_dict())"
        )


def refuse_frameworks() -> None:
    """Refuse that what calls the caller is Lightning, which fetches ahead and saves the position behind that.

    Raises:
        ConfigError: it is.
    """
    module = str(sys._getframe(2).f_globals.get("__name__"))
    if module.partition(".")[0] in _LIGHTNING:
        raise ConfigError(
            "Loader: given to Lightning as it is, which fetches ahead, and would save a position that training has not "
            "come to, and accumulate other steps; give fit(module, datamodule=streamsft.StreamDataModule(loader)), "
            "with the function that makes the loader in place of it on several ranks"
        )
