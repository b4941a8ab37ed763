"""Damaged files: whatever reading them raises becomes one error that names them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamsft.errors import StoreError, StreamsftError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["check_buffers", "check_but_text", "checked_schema", "decoding", "is_damage"]

_KINDS = (OSError, EOFError, zlib.error, ValueError, LookupError, OverflowError)


def is_damage(error: Exception) -> bool:
    """Whether `error` may come of damaged bytes, and not of this package, which says itself what is wrong.

    Arrow finds most damage itself. Names that are no text, and numbers that point nowhere, it hands to Python, where
    they are errors of other kinds.
    """
    if isinstance(error, StreamsftError):
        return False
    return isinstance(error, _KINDS) or type(error).__module__ == "pyarrow.lib"


@contextmanager
def decoding(where: str, what: str = "is damaged") -> Iterator[None]:
    """Say which file it was when its bytes cannot be decoded.

    Args:
        where: the file, and the place in it.
        what: what is wrong with it then.

    Raises:
        StoreError: it cannot be read, or is damaged.
    """
    try:
        yield
    except Exception as error:
        if not is_damage(error):
            raise
        raise StoreError(f"{where}: {what} ({str(error) or type(error).__name__}); write or copy it again") from error


def checked_schema(schema: pa.Schema) -> pa.Schema:
    """`schema`, all names of which are text; Arrow only finds out when it is asked for one.

    Raises:
        UnicodeDecodeError: one is none.
    """
    fields = list(schema)
    while fields:
        field = fields.pop()
        field.name.encode()
        fields += [field.type.field(number) for number in range(field.type.num_fields)]
    return schema


def check_buffers(batch: pa.RecordBatch, where: str) -> None:
    """See that what the rows refer to is there: values of lists, texts and dictionaries; and that texts are UTF-8.

    A file may be read without an error though its bytes are damaged, and what is made of it then reads memory that is
    not its own.

    Raises:
        StoreError: it is damaged.
    """
    with decoding(where):
        batch.validate(full=True)


def check_but_text(batch: pa.RecordBatch) -> None:
    """`check_buffers` of rows whose texts need not be UTF-8: that costs one row, where all else costs the file.

    Raises:
        pyarrow.ArrowInvalid: what the rows refer to is not there.
    """
    for column in batch.columns:
        kind = _with_bytes(column.type)
        (column if kind == column.type else column.view(kind)).validate(full=True)


def _with_bytes(kind: pa.DataType) -> pa.DataType:
    """`kind` with bytes for text, wherever there is text in it."""
    import pyarrow as pa

    if kind in (texts := {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}):
        return texts[kind]
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _with_bytes(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_bytes(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_bytes(kind.key_type), _with_bytes(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        items = kind.value_field.with_type(_with_bytes(kind.value_type))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(items, kind.list_size)
        return pa.large_list(items) if pa.types.is_large_list(kind) else pa.list_(items)
    return kind
