"""Whether files hold tokenized rows or text."""

from __future__ import annotations

import json
import os
from pathlib import Path

from streamsft.errors import DataError, StoreError
from streamsft.sources.arrowfiles import ArrowFile
from streamsft.sources.files import reading
from streamsft.sources.jsontext import array_elements, holds_array
from streamsft.sources.manifest import MANIFEST_FILE
from streamsft.sources.parquetfiles import ParquetFile
from streamsft.sources.paths import Paths, RawFile, find_files
from streamsft.sources.rawbytes import open_bytes
from streamsft.sources.tokennames import holds_tokens

__all__ = ["paths_hold_tokens"]

_LINES = 64


def paths_hold_tokens(paths: Paths) -> bool:
    """Whether what `paths` stands for is a token store, or its first file has the columns of one.

    False where nothing can be found or read: whoever reads it as text says what is wrong.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if any((Path(path).expanduser() / MANIFEST_FILE).is_file() for path in given):
        return True
    try:
        first = find_files(paths)[0]
        with reading(first):
            return holds_tokens(_columns(first))
    except (DataError, ValueError, RecursionError):
        return False


def _columns(file: RawFile) -> list[str]:
    """Names of the columns of a file, those of its first row where it has no schema."""
    match file.format:
        case "parquet":
            return list(ParquetFile(file.path).schema.names)
        case "arrow":
            return list(ArrowFile(file.path).schema.names)
        case "jsonl" | "json":
            return _keys(file)
    return []


def _keys(file: RawFile) -> list[str]:
    with open_bytes(file.path, file.compression) as (stream, _):
        if holds_array(stream, lines=file.format == "jsonl"):
            text = next((element for element, _, _ in array_elements(stream, file.path)), b"{}")
        else:
            lines = (stream.readline() for _ in range(_LINES))
            text = next((line for line in lines if line.strip(b"\xef\xbb\xbf \t\r\n")), b"{}")
    row = json.loads(text.decode("utf-8-sig"))
    if not isinstance(row, dict):
        raise StoreError(f"{file.path}: its first row is no object")
    return list(row)
