"""Where a tokenized source is cached, and under which name: a digest of everything that decides its tokens."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamsft.errors import StoreError
from streamsft.sources.cachefolder import default_cache_dir
from streamsft.sources.store import TokenStore
from streamsft.text.rejections import read_rejections

__all__ = ["CODE_VERSION", "cache_key", "default_cache_dir", "find_cached"]

logger = logging.getLogger("streamsft")

#: Raised whenever streamsft would make other tokens, masks or rejections of the same input.
CODE_VERSION = 2


def cache_key(content: list[Any], encoder: str, *, format: str | None, columns: Mapping[str, str] | None) -> str:  # noqa: A002
    """The digest, 32 hexadecimal digits. No path and no name is in it.

    Args:
        content: the reader's `content_key`.
        encoder: fingerprint of the chat tokenizer or identity of the user's function.
        format: the name of the rows' format; None if it is detected, which the content decides.
        columns: which columns the format's parts are read from.
    """
    parts = {
        "version": CODE_VERSION,
        "content": content,
        "encoder": encoder,
        "format": format,
        "columns": dict(columns or {}),
    }
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode("utf-8"), digest_size=16).hexdigest()


def find_cached(path: Path, name: str, *, verify: bool = False, listed: bool = False) -> TokenStore | None:
    """The complete store at `path` as source `name`; None if there is none, or only what is left of one.

    Args:
        path: the place in the cache, named by the key.
        name: the source's name.
        verify: read all bytes, not only what opening needs.
        listed: read the list of rejected rows too.
    """
    if not path.exists():
        return None
    try:
        store = TokenStore.open(path, name=name, verify=verify)
        if store.manifest.key != path.name:
            raise StoreError(f"{path}: holds a store of other rows, for the key {store.manifest.key!r}")
        for _ in read_rejections(path) if listed else ():
            pass
    except StoreError as error:
        logger.warning("source %s: its cached store is made again: %s", name, error)
        return None
    return store
