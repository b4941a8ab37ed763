"""Where a tokenizer or a model is: a folder, an installed package, or the hub; and whether the hub can be reached.

Looking is quick. What can only be a path is never asked for on the hub, and without a network the hub is not waited
for: what it holds is then taken from its local cache alone.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from streamsft.errors import StreamsftError
from streamsft.sources.paths import nearest

__all__ = ["Location", "hub_is_offline", "locate", "without_hub"]

_PACKAGE = "package:"
_HUB_ID = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?(/[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?)?")
_HUB_ID_LENGTH = 96
_WAIT_S = 5.0
"""How long the hub may take to answer; a name server that does not answer would be waited for longer."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where something is.

    Attributes:
        name: what transformers takes: a folder, or the id of a repository on the hub.
        offline: whether only the hub's local cache is to be looked in.
    """

    name: str
    offline: bool


def locate(given: str, *, key: str, files: Sequence[str], error: type[StreamsftError]) -> Location:
    """Where `given` is.

    Args:
        given: a folder, a hub id, or ``package:NAME`` for the folder of the installed Python package NAME, which is
            not imported.
        key: what it is called in a config, for messages.
        files: names of files of which a folder must hold one.
        error: what is raised.

    Raises:
        StreamsftError: of the class `error`: no such folder or package, or one that holds something else. Says which
            path there is instead.
    """
    if given.startswith(_PACKAGE):
        return Location(name=_package_folder(given, key, error), offline=True)
    path = os.path.expanduser(given)
    if os.path.isdir(path):
        if not any(os.path.exists(os.path.join(path, file)) for file in files):
            held = ", ".join(sorted(os.listdir(path))[:8]) or "nothing"
            raise error(f"{key}: {given}: the folder holds none of {', '.join(files)}; it holds {held}")
        return Location(name=path, offline=True)
    if os.path.exists(path):
        raise error(f"{key}: {given}: is a file; give the folder that it is in: {os.path.dirname(path) or '.'}")
    if not _may_be_on_the_hub(given):
        raise error(
            f"{key}: {given}: no such folder; {nearest(path)}. Give a folder with {files[0]}, the id of a model on the "
            "hub (owner/name), or package:NAME for an installed Python package"
        )
    return Location(name=given, offline=hub_is_offline())


def _package_folder(given: str, key: str, error: type[StreamsftError]) -> str:
    name = given.removeprefix(_PACKAGE)
    folders = _folders(name)
    if not folders:
        meant = name.replace("-", "_")
        near = f"did you mean {_PACKAGE}{meant}?" if meant != name and _folders(meant) else "pip install it"
        raise error(f"{key}: {given}: the package {name!r} is not installed; {near}")
    return folders[0]


def _folders(package: str) -> list[str]:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _may_be_on_the_hub(given: str) -> bool:
    if len(given) > _HUB_ID_LENGTH or not _HUB_ID.fullmatch(given) or "--" in given or ".." in given:
        return False
    return not given.endswith((".git", ".json"))


def hub_is_offline(wait: float = _WAIT_S) -> bool:
    """Whether the hub is out of reach: told so by ``HF_HUB_OFFLINE``, or it does not answer within `wait` seconds."""
    import huggingface_hub
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        return True
    answer: Future[object] = Future()

    def ask() -> None:
        try:
            answer.set_result(huggingface_hub.get_session().head(ENDPOINT, timeout=wait))
        except Exception as error:  # whatever it is, the hub did not answer
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()  # looking up a name may hang, and heeds no timeout
    try:
        return answer.exception(wait) is not None
    except TimeoutError:
        return True


@contextmanager
def without_hub() -> Iterator[None]:
    """Have `datasets` and the hub's library look in their local caches alone, as with ``HF_HUB_OFFLINE=1``."""
    import datasets.config
    import huggingface_hub.constants

    told: tuple[Any, ...] = (datasets.config, huggingface_hub.constants)
    before = [module.HF_HUB_OFFLINE for module in told]
    for module in told:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(told, before, strict=True):
            module.HF_HUB_OFFLINE = value
