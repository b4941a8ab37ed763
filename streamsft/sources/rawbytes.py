"""Plain, gzip and zstd files as buffered byte streams that fail when the compressed data ends early."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast, final

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["RandomAccess", "open_bytes"]

_FEED = 1 << 14  # compressed bytes per call, so that the output of one call stays small
_BUFFER = 1 << 17


@contextmanager
def open_bytes(source: str | IO[bytes], compression: str | None) -> Iterator[tuple[BinaryIO, IO[bytes]]]:
    """Open a file as (its decompressed bytes, the file itself, whose position tells the progress).

    It is given by its path, or as a buffered stream. The first can be peeked at. Several gzip members or zstd frames
    in a row are one stream.

    Raises:
        OSError, EOFError, zlib.error: also while reading, where the data is damaged or ends early.
    """
    with open(source, "rb") if isinstance(source, str) else nullcontext(source) as raw:
        if compression == "gzip":
            with gzip.GzipFile(fileobj=raw) as unzipped, io.BufferedReader(unzipped, _BUFFER) as stream:
                yield cast(BinaryIO, stream), raw
        elif compression == "zstd":
            with io.BufferedReader(_ZstdFrames(raw), _BUFFER) as stream:
                yield cast(BinaryIO, stream), raw
        else:
            yield cast(BinaryIO, raw), raw


class RandomAccess(io.RawIOBase):
    """A file of known size that is read from where it was sought; how is up to the subclass.

    Args:
        size: its bytes.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at


@final
class _ZstdFrames(io.RawIOBase):
    """The frames of a zstd file, one after the other.

    `zstandard`'s own stream reader takes a truncated frame for the end of the data.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        import zstandard

        self._raw = raw
        self._error: type[Exception] = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._fed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        while not self._ready:
            if not self._advance():
                return 0
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _advance(self) -> bool:
        """Decompress a little more; False at the end of the file."""
        data = self._fed or self._raw.read(_FEED)
        self._fed = b""
        if not data:
            if self._frame is not None:
                raise EOFError("the zstd data ends in the middle of a frame")
            return False
        if self._frame is None:
            self._frame = self._decompressor.decompressobj()
        try:
            self._ready = memoryview(self._frame.decompress(data))
        except self._error as error:
            raise OSError(f"damaged zstd data: {error}") from error
        if self._frame.eof:
            self._fed = self._frame.unused_data
            self._frame = None
        return True
