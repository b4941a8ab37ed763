"""Token stores: tokenized rows with loss masks, memory-mapped from disk or kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

import pyarrow as pa

from streamsft.engine import Engine
from streamsft.errors import StoreError
from streamsft.sources.indexing import rows_at
from streamsft.sources.manifest import Manifest
from streamsft.sources.opening import Layout, Opened, open_store, open_table
from streamsft.sources.pairs import carried_names, with_pairs
from streamsft.sources.paths import Paths
from streamsft.sources.rowids import RowIds
from streamsft.sources.storefiles import absolute, name_of
from streamsft.sources.vocabulary import refuse_ids_beyond
from streamsft.types import Bools, Int32s, Ints, Sample, Shard, check_name, samples_of

if TYPE_CHECKING:
    from streamsft.sources.writer import StoreWriter

__all__ = ["TokenStore"]

_PICKLED = ("_name", "_paths", "_extras", "_expected", "_files")


@final
class TokenStore:
    """A named, indexable source of tokenized rows; also a map-style dataset for any ``DataLoader``.

    On disk a store is a directory that ``datasets.load_from_disk`` opens. Conversely every directory of
    ``Dataset.save_to_disk``, and every .arrow, .parquet, .jsonl or .json file, with the list columns ``input_ids``
    (integers) and ``loss_mask`` (0/1 or booleans) or ``labels`` (-100, or the id at its own place) is a store, however
    its lists are laid out: the same rows have the same fingerprint and read the same. Such a store is scanned once and
    every row checked; what was found is kept in ``streamsft-index.bin`` beside the data, or in the user's cache.

    Tokens are never all loaded: Arrow files are mapped; Parquet, and Arrow that is compressed, is decoded a row group
    or record batch at a time, of which 256 MiB are kept; JSON is parsed row by row. One on disk pickles as its path.
    """

    def __init__(
        self, name: str, opened: Opened | None, paths: Paths | None = None, extras: Sequence[str] = ()
    ) -> None:
        """Use `open`, `from_rows`, `from_arrow` or `writer` instead."""
        self._name = check_name(name)
        self._paths = paths
        self._extras = tuple(extras)
        self._opened = opened
        self._expected = "" if opened is None else opened.manifest.fingerprint
        self._files: tuple[str, ...] | None = None

    @classmethod
    def open(
        cls,
        path: Paths,
        *,
        name: str | None = None,
        extras: Sequence[str] = (),
        tokenizer_hash: str | None = None,
        vocabulary: int | None = None,
        verify: bool = False,
        advance: Callable[[int], None] | None = None,
        engine: Engine | None = None,
    ) -> Self:
        """Open a store where it lies; nothing of it is copied.

        Args:
            path: a directory, an .arrow, .parquet, .jsonl or .json file, a pattern, or a list of these.
            name: the source's name; by default the path's, with other characters than a name may have made ``_``.
            extras: further columns that travel with the rows, see `Sample.extras`.
            tokenizer_hash: digest of the tokenizer in use; a store that is known to be of another one is refused.
            vocabulary: number of token ids there are; a store with a larger id is refused.
            verify: read all bytes and compare them with the checksums; without it only sizes and ends are checked.
            advance: called with the bytes behind it while a store that others wrote is scanned.
            engine: has what is read whole read and checked; by default this process does.

        Raises:
            StoreError: there is no store, or it is incomplete, damaged, of another tokenizer, or a row breaks a rule.
        """
        places = absolute(path)
        opened = open_store(places, extras=extras, verify=verify, advance=advance, engine=engine)
        if tokenizer_hash and (made_by := opened.manifest.tokenizer) not in ("", tokenizer_hash):
            raise StoreError(
                f"{places}: was made by the tokenizer {made_by}, the one in use is {tokenizer_hash}; "
                "use that tokenizer, or tokenize the source again"
            )
        store = cls(name_of(places) if name is None else name, opened, places, extras)
        if vocabulary is not None and opened.manifest.largest_id >= vocabulary:
            refuse_ids_beyond(store, vocabulary)
        return store

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any] | Sample], *, name: str = "rows") -> TokenStore:
        """A store in memory, of rows with ``input_ids`` and ``loss_mask``; they are numbered from 0.

        Raises:
            StoreError: a row lacks one of the two, they differ in length, or hold something else than ids and 0/1.
        """
        from streamsft.sources.rows import store_of_rows

        return store_of_rows(rows, name)

    @classmethod
    def from_arrow(cls, data: pa.Table | pa.RecordBatch, *, name: str = "table", extras: Sequence[str] = ()) -> Self:
        """A store over an Arrow table in memory, in any list layout, not copied; rows are numbered from 0.

        Raises:
            StoreError: a column is missing or does not hold token ids or a 0/1 mask.
        """
        table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
        return cls(check_name(name), open_table(table, f"source {name}", extras=extras), None, extras)

    @staticmethod
    def writer(
        path: str | Path | None, *, name: str | None = None, files: Sequence[str] = (), pairs: bool = False
    ) -> StoreWriter:
        """Build a store at `path`, or in memory if it is None; see `StoreWriter`."""
        from streamsft.sources.writer import StoreWriter

        return StoreWriter(path, name=name, files=files, pairs=pairs)

    @property
    def name(self) -> str:
        """The source's name."""
        return self._name

    @property
    def path(self) -> Path | None:
        """The store's directory or file; None in memory, or where it has several."""
        return self._paths if isinstance(self._paths, Path) else None

    @property
    def manifest(self) -> Manifest:
        """What the store holds, as it was written."""
        return self._data.manifest

    @property
    def layout(self) -> Layout:
        """How the rows lie on disk."""
        return self._data.layout

    @property
    def fingerprint(self) -> str:
        """Digest of the ordered rows (ids, masks, numbers), 32 hexadecimal digits; the same in every layout."""
        return self._data.manifest.fingerprint

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that the rows came from."""
        return self._data.manifest.files if self._files is None else self._files

    def rename_files(self, files: Sequence[str]) -> None:
        """Call the files that the rows came from by the names that they have now, one for each."""
        self._files = tuple(files)

    @property
    def rejected(self) -> Mapping[str, int]:
        """Rows of the input that were not stored, by reason."""
        return self._data.manifest.rejected

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return self._data.manifest.tokens

    @property
    def lengths(self) -> Int32s:
        """Tokens per row, int32[rows]."""
        return self._data.index.length

    @property
    def sequence_lengths(self) -> Int32s:
        """The same as `lengths`, under the name that samplers which group by length ask for."""
        return self._data.index.length

    @property
    def supervised(self) -> Int32s:
        """Supervised tokens at index 1 or later per row, int32[rows]."""
        return self._data.index.supervised

    @property
    def first_supervised(self) -> Int32s:
        """Index >= 1 of the first supervised token per row, int32[rows]; the row's length where there is none."""
        return self._data.index.first_supervised

    @property
    def row_numbers(self) -> Ints:
        """Number of each row in the source's input order, int64[rows], strictly increasing."""
        return self._data.index.row

    def origin(self, index: int) -> str:
        """Where stored row `index` came from: ``file:row``, or ``name:row`` without files."""
        rows = self._data.index
        return (
            f"{self.files[rows.file[index]]}:{rows.file_row[index]}"
            if self.files
            else f"{self._name}:{rows.row[index]}"
        )

    def read(self, index: Ints) -> tuple[list[Int32s], list[Bools]]:
        """Ids (int32[n] each) and masks (bool[n] each) of the stored rows `index` (int64[k] in [0, rows)).

        The arrays are read-only views on the memory map wherever the layout allows. Order and repeats are kept.

        Raises:
            IndexError: a row that is not there.
        """
        return (self._opened or self._data).rows.read(index)

    @property
    def carried(self) -> tuple[str, ...]:
        """What travels with the rows: images if there are any, the extras that were named, and ``pair`` of pairs."""
        return carried_names(self._data.carried, self._data.index)

    def read_carried(self, index: Ints) -> dict[str, Any]:
        """What travels with the stored rows `index`, by column; lists of numbers as arrays, null as None. Of pairs
        ``pair`` is one array, int32[k, 2]: see `streamsft.sources.pairs`."""
        return with_pairs(self._data.rows.carried(index) if self._data.carried else {}, self._data.index, index)

    @property
    def whole(self) -> Bools | None:
        """True where a row must not be cut, for it holds images or is a pair, bool[rows]; None where all may be."""
        return self._data.index.uncut

    def read_ids(self, index: Ints) -> RowIds:
        """Ids of the stored rows `index`."""
        return (self._opened or self._data).rows.read_ids(index)

    def __len__(self) -> int:
        return self._data.manifest.rows

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """The samples of several rows at once, as ``DataLoader`` asks for them; see `rows_at` for what is taken."""
        index = rows_at(indices, len(self), f"source {self._name!r}")
        if not len(index):
            return []
        ids, masks = self.read(index)
        columns = self.read_carried(index)
        extras = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return samples_of(self._name, ids, masks, self.row_numbers[index].tolist(), extras or None)

    def stream(self, *, seed: int = 0, shard: Shard | None = None, shuffle: bool = True, overflow: Any = None) -> Any:
        """The endless, shuffled iterable over this store; see `streamsft.stream.sourcestream.SourceStream`."""
        from streamsft.stream.sourcestream import SourceStream

        return SourceStream(self, seed=seed, shard=shard or Shard(), shuffle=shuffle, overflow=overflow)

    def renamed(self, name: str) -> TokenStore:
        """The same store as a source of another name."""
        store = TokenStore(name, self._opened, self._paths, self._extras)
        store._expected = self._expected
        return store

    def __repr__(self) -> str:
        return f"TokenStore({self._name!r}, {len(self):,} rows, {self.tokens:,} tokens, {self._paths or 'in memory'})"

    @property
    def _data(self) -> Opened:
        if self._opened is None:
            assert self._paths is not None
            opened = open_store(self._paths, extras=self._extras)
            if opened.manifest.fingerprint != self._expected:
                raise StoreError(
                    f"{self._paths}: holds other rows (fingerprint {opened.manifest.fingerprint}) than when the store "
                    f"was opened ({self._expected}); open it again"
                )
            self._opened = opened
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in _PICKLED}
        if (opened := self._opened) is not None and opened.known is not None:
            state["known"] = opened.known
        if opened is not None and opened.table is not None:
            with pa.ipc.new_stream(sink := pa.BufferOutputStream(), opened.table.schema) as stream:
                stream.write_table(opened.table)
            state["ipc"] = sink.getvalue().to_pybytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: state[name] for name in _PICKLED}, _opened=None)
        known = state.get("known")
        if "ipc" in state:
            table = pa.ipc.open_stream(state["ipc"]).read_all()
            self._opened = open_table(table, self._name, extras=self._extras, known=known)
        elif known is not None:
            self._opened = open_store(state["_paths"], extras=self._extras, known=known)
