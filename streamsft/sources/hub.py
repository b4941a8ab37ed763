"""`datasets.Dataset` objects, datasets of the Hugging Face hub, and plain lists of rows as `RowReader`s."""

from __future__ import annotations

import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from streamsft.errors import DataError
from streamsft.sources.hublocation import hub_is_offline, without_hub
from streamsft.sources.rawrows import BadRow, Chunk, ListedRows, RowReader, null_pruner
from streamsft.sources.tables import serialized

if TYPE_CHECKING:
    import datasets

__all__ = ["DatasetRows", "HubDataset", "ListRows"]

_ROWS = 500  # per chunk; rows of a dataset come without their sizes


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HubDataset:
    """Which dataset of the hub to load; `datasets.load_dataset` says what the fields mean.

    `id` may also be a folder, or the name of one of its file formats (``json``) with `data_files`.
    """

    id: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    data_files: str | Sequence[str] | Mapping[str, Any] | None = None

    def load(self) -> datasets.Dataset:
        """Download and prepare the dataset, or find it in the cache of `datasets`.

        Raises:
            DataError: there is no such dataset, configuration, split or revision, or no way to it.
        """
        loaded: datasets.Dataset = self._load(streaming=False)
        return loaded

    def stream(self) -> datasets.IterableDataset:
        """The dataset as one that is read while it is used, without downloading it first.

        Raises:
            DataError: there is no such dataset, configuration, split or revision, or no way to it.
        """
        loaded: datasets.IterableDataset = self._load(streaming=True)
        return loaded

    def _load(self, *, streaming: bool) -> Any:
        import datasets

        offline = not self._is_local and hub_is_offline()
        try:
            with without_hub() if offline else nullcontext():
                return datasets.load_dataset(
                    self.id,
                    self.config,
                    split=self.split,
                    revision=self.revision,
                    data_files=self.data_files,
                    streaming=streaming,
                )
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            if offline:
                raise DataError(
                    f"hub: {self.id}: cannot be loaded: the hub cannot be reached, and what its local cache holds is "
                    f"not enough: {error}. Fetch it once with a network, or give files as path"
                ) from error
            raise DataError(
                f"hub: {self.id}: cannot be loaded: {error}. Check the id, the config, the split "
                f"({self.split!r}) and the revision, and that the hub can be reached"
            ) from error

    @property
    def _is_local(self) -> bool:
        """Whether the id is a folder, or the name of a file format."""
        return os.path.exists(self.id) or ("/" not in self.id and self.data_files is not None)


class _SizedRows(RowReader):
    """Rows that have a length, as one file of that name; read in pieces of `_ROWS`."""

    def __init__(self, rows: Sized, name: str) -> None:
        self._size = len(rows)
        self._name = name

    @property
    def files(self) -> tuple[str, ...]:
        return (self._name,)

    @property
    def size(self) -> int:
        return self._size

    def chunks(self) -> Iterator[Chunk]:
        done = 0
        for rows in self._pieces():
            yield ListedRows(first_row=done, read=done + len(rows), values=rows)
            done += len(rows)

    @abstractmethod
    def _pieces(self) -> Iterator[tuple[dict[str, Any] | BadRow, ...]]:
        """The rows, some at a time."""


@final
class DatasetRows(_SizedRows):
    """The rows of a `datasets.Dataset`, as `dataset[i]` gives them, whatever its format is set to.

    Keys of nested structs that are null are left out: the columnar table gave every struct the union
    of all keys. In columns of type `datasets.Json` a null stays.
    """

    def __init__(self, dataset: datasets.Dataset, *, name: str = "dataset") -> None:
        super().__init__(dataset, name)
        self._dataset = dataset

    def content_key(self) -> list[Any]:
        """Hash of the schema and of all values, in order."""
        digest = hashlib.blake2b(digest_size=32)
        digest.update(repr(self._dataset.features).encode("utf-8"))
        table = self._dataset.with_format("arrow")
        for batch in table.iter(_ROWS):
            combined = batch.combine_chunks().to_batches()
            digest.update(b"".join(serialized(piece) for piece in combined))
        return ["dataset", digest.hexdigest()]

    def _pieces(self) -> Iterator[tuple[dict[str, Any] | BadRow, ...]]:
        prune = null_pruner(self._dataset.features.arrow_schema)
        for batch in self._dataset.with_format(None).iter(_ROWS):
            names = list(batch)
            yield tuple(prune(dict(zip(names, values, strict=True))) for values in zip(*batch.values(), strict=True))


@final
class ListRows(_SizedRows):
    """Rows that are in memory, as dicts of JSON values."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], *, name: str = "rows") -> None:
        super().__init__(rows, name)
        self._rows = rows

    def content_key(self) -> list[Any]:
        """Hash of all rows as JSON, in order.

        Raises:
            DataError: a row is not made of JSON values.
        """
        digest = hashlib.blake2b(digest_size=32)
        for number, row in enumerate(self._rows):
            try:
                digest.update(json.dumps(row).encode("ascii") + b"\n")
            except (TypeError, ValueError) as error:
                raise DataError(f"{self._name}:{number}: the row is not made of JSON values: {error}") from error
        return ["rows", digest.hexdigest()]

    def _pieces(self) -> Iterator[tuple[dict[str, Any] | BadRow, ...]]:
        for start in range(0, len(self._rows), _ROWS):
            yield tuple(_checked(row) for row in self._rows[start : start + _ROWS])


def _checked(row: Mapping[str, Any]) -> dict[str, Any] | BadRow:
    try:
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        return BadRow("half of a surrogate pair (\\ud800 to \\udfff), which is no character")
    except ValueError as error:
        return BadRow(str(error))
    return dict(row)
