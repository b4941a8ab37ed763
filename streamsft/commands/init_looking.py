"""What a new config can say of files: which make a source, in which format, how many rows and how long."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from streamsft.errors import DataError, StreamsftError
from streamsft.sources.files import RawFiles
from streamsft.sources.paths import RawFile
from streamsft.sources.rawrows import BadRow
from streamsft.text.chat import ChatTokenizer
from streamsft.text.conversation import RowRejected
from streamsft.text.formats import parser
from streamsft.text.tokenizing import detect_source_format

__all__ = ["Candidate", "Look", "candidates", "look"]

_LOOKED_AT = 200  # rows that are tokenized, to see how long they are
_COUNTED = 1 << 26  # bytes up to which rows are counted one by one
_GENERIC = {"train", "test", "data", "dataset", "valid", "validation", "dev", "eval"}
_EVALUATION = re.compile(r"(^|[-_.])(test|valid|validation|dev|eval)([-_.]|$)", re.IGNORECASE)
_NUMBERS = re.compile(r"\d{2,}")
_PARTS = re.compile(r"[-_.]?\*([-_.]?of[-_.]?\*)?")  # what stands for the numbers of parts


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Files that may make a source.

    Attributes:
        name: a name for it.
        path: its file, or a pattern that stands for its files.
        evaluation: whether its name says that it is not for training.
    """

    name: str
    path: str
    evaluation: bool


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the rows of a candidate look like.

    Attributes:
        format: the format that they are in; "" where it is not known.
        rows: number of rows.
        counted: whether that is exact; else it goes by the size of the first rows.
        lengths: tokens of the first rows that can be used.
        rejected: how many of the first rows cannot be.
        problem: why no source can be made of it.
    """

    format: str = ""
    rows: int = 0
    counted: bool = True
    lengths: tuple[int, ...] = ()
    rejected: int = 0
    problem: str = ""


def candidates(files: Sequence[RawFile]) -> list[Candidate]:
    """The sources that files make: those of a folder whose names differ in numbers alone are parts of one."""
    groups: dict[str, list[str]] = {}
    for file in files:
        folder, name = str(Path(file.path).parent), Path(file.path).name
        groups.setdefault(str(Path(folder) / _NUMBERS.sub("*", name)), []).append(file.path)
    parted = [paths for key, paths in groups.items() if len(paths) > 1 and _is_pattern_of(key, paths)]
    joined = {path: _NUMBERS.sub("*", Path(path).name) for paths in parted for path in paths}
    patterns = {str(Path(path).parent / name) for path, name in joined.items()}
    paths = sorted(patterns | {file.path for file in files if file.path not in joined})
    return [
        Candidate(name=name, path=path, evaluation=bool(_EVALUATION.search(_stem(path))))
        for name, path in zip(_names(paths), paths, strict=True)
    ]


def _is_pattern_of(pattern: str, paths: Sequence[str]) -> bool:
    escaped = "*".join(map(glob.escape, pattern.split("*")))
    return sorted(glob.glob(escaped)) == sorted(paths) and escaped == pattern


def _stem(path: str) -> str:
    return Path(path).name.split(".")[0] or Path(path).name


def _names(paths: Sequence[str]) -> Iterator[str]:
    """A name for each, with the folder's where the file's says little or stands twice."""
    stems = [_clean(_stem(path)) for path in paths]
    used: set[str] = set()
    for path, stem in zip(paths, stems, strict=True):
        name = stem
        if stem.lower() in _GENERIC or stems.count(stem) > 1:
            name = f"{_clean(Path(path).resolve().parent.name)}-{stem}"
        number, base = 2, name
        while name in used:
            name, number = f"{base}-{number}", number + 1
        used.add(name)
        yield name


def _clean(name: str) -> str:
    name = _PARTS.sub("", name)
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("-_.") or "source"


def look(candidate: Candidate, chat: ChatTokenizer) -> Look:
    """Read the first rows of a candidate, tokenize them, and count the rest or tell their number by the size."""
    try:
        files = RawFiles(candidate.path)
        name = detect_source_format(files, candidate.name, {})
        values, rows, counted = _rows(files)
        if not rows:
            raise DataError("there are no rows")
        found = chat.encode_rows([value for value in values if not isinstance(value, BadRow)], parser(name))
    except StreamsftError as error:
        return Look(problem=str(error))
    lengths = tuple(len(row.input_ids) for row in found if not isinstance(row, RowRejected))
    rejected = [str(row) for row in found if isinstance(row, RowRejected)]
    if not lengths:
        why = rejected[0] if rejected else "they cannot be decoded"
        return Look(format=name, problem=f"none of the first {len(values):,} rows can be used: {why}")
    return Look(format=name, rows=rows, counted=counted, lengths=lengths, rejected=len(values) - len(lengths))


def _rows(files: RawFiles) -> tuple[list[dict[str, Any] | BadRow], int, bool]:
    """The first rows, how many there are, and whether that was counted."""
    first: list[dict[str, Any] | BadRow] = []
    count = 0
    for chunk in files.chunks():
        rows = chunk.rows()
        first += [row.value for row in rows[: max(0, _LOOKED_AT - len(first))]]
        count += len(rows)
        if len(first) >= _LOOKED_AT and files.size > _COUNTED and chunk.read:
            return first, round(count * files.size / chunk.read), False
    return first, count, True
