"""Cutting JSON Lines and JSON arrays into rows without building them, in bounded memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import BinaryIO, final

from streamsft.errors import DataError
from streamsft.sources.rawrows import CHUNK_BYTES

__all__ = ["array_elements", "holds_array", "split_array", "split_lines", "without_bom"]

_BOM = codecs.BOM_UTF8
_SPACE = re.compile(r"[ \t\n\r]*")
_TAIL = 16  # an error this close to the end of the buffer may only mean that the text goes on
_NUMBER_GOES_ON = 3  # of `1e+`, what was read so far, the `1` alone is a value too


def holds_array(stream: BinaryIO, *, lines: bool = False) -> bool:
    """True if a buffered stream holds one JSON array. Nothing is consumed.

    Args:
        stream: at its start.
        lines: it is called JSON Lines: an array must begin with an object, and not be a line with others behind it.
    """
    head: bytes = stream.peek(4096)  # type: ignore[attr-defined]
    text = head.removeprefix(_BOM).lstrip()
    if text[:1] != b"[" or not lines:
        return text[:1] == b"["
    first, _, behind = text.partition(b"\n")
    return text[1:].lstrip()[:1] in (b"{", b"]", b"") and not (behind.strip() and _is_json(first))


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def split_lines(stream: BinaryIO, where: str) -> Iterator[tuple[bytes, int]]:
    """Cut a stream behind newlines into pieces of about `CHUNK_BYTES`, each with its first line's number (from 1).

    A byte order mark at the start is dropped.

    Raises:
        DataError: the text is UTF-16.
    """
    carry: list[bytes] = []
    line = 1
    block = without_bom(stream.read(CHUNK_BYTES), where)
    while block:
        cut = block.rfind(b"\n") + 1
        if cut:
            data = b"".join((*carry, block[:cut]))
            yield data, line
            line += data.count(b"\n")
            carry = []
        carry.append(block[cut:])
        block = stream.read(CHUNK_BYTES)
    if rest := b"".join(carry):
        yield rest, line


def split_array(stream: BinaryIO, where: str) -> Iterator[tuple[list[bytes], list[int]]]:
    """Cut a JSON array into the texts of its elements and the lines they start on (from 1), piece by piece.

    Memory is bounded by `CHUNK_BYTES` and the largest element. Text that is not UTF-8 is passed on
    as it is, within its element.

    Raises:
        DataError: the array is malformed, so that what follows cannot be told apart.
    """
    texts: list[bytes] = []
    lines: list[int] = []
    size = 0
    for text, line, _ in array_elements(stream, where):
        texts.append(text)
        lines.append(line)
        size += len(text)
        if size >= CHUNK_BYTES:
            yield texts, lines
            texts, lines, size = [], [], 0
    if texts:
        yield texts, lines


def array_elements(
    stream: BinaryIO, where: str, start: tuple[int, int] | None = None
) -> Iterator[tuple[bytes, int, tuple[int, int]]]:
    """Each element of a JSON array: its text, the line it starts on (from 1), and where the array goes on behind it.

    Args:
        stream: at the start of the text, or at `start`.
        where: the file, for messages.
        start: where to go on behind an element, as (byte, line).

    Raises:
        DataError: the array is malformed, so that what follows cannot be told apart.
    """
    window = _Window(stream, where, start)
    if start is None:
        window.expect("[", "a JSON array")
        more = not window.skip("]")
    else:
        more = window.goes_on()
    while more:
        line = window.line
        text = window.element()
        yield text, line, window.position
        more = window.goes_on()
    window.expect_end()


@final
class _Window:
    """A sliding window over the characters of a stream."""

    def __init__(self, stream: BinaryIO, where: str, start: tuple[int, int] | None) -> None:
        self._byte, self._line = start or (0, 1)
        self._stream = stream
        self._where = where
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="surrogateescape").decode
        self._scan = json.JSONDecoder().raw_decode
        block = stream.read(CHUNK_BYTES)
        if start is None:
            self._byte = len(block) - len(block := without_bom(block, where))
        self._text = self._decode(block)
        self._at = 0
        self._counted = 0

    @property
    def line(self) -> int:
        """Line of the next character that is not blank."""
        self._skip_space()
        return self.position[1]

    @property
    def position(self) -> tuple[int, int]:
        """Byte and line of the next character."""
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._byte, self._line

    def goes_on(self) -> bool:
        """Step over what follows an element; whether another one comes."""
        more = self.skip(",")
        if not more:
            self.expect("]", "',' or ']'")
        return more

    def skip(self, character: str) -> bool:
        """Step over `character` if it is next."""
        self._skip_space()
        found = self._text.startswith(character, self._at)
        self._at += found
        self._byte += found
        return found

    def expect(self, character: str, what: str) -> None:
        if not self.skip(character):
            raise self._malformed(f"expected {what}")

    def expect_end(self) -> None:
        self._skip_space()
        if self._at < len(self._text):
            raise self._malformed("text after the end of the array")

    def element(self) -> bytes:
        """Step over one JSON value and return its text."""
        self._skip_space()
        while True:
            try:
                _, end = self._scan(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._may_go_on(error) and self._fill():
                    continue
                raise self._malformed(error.msg, error.pos) from error
            except RecursionError as error:
                raise self._malformed("nested too deeply") from error
            except ValueError as error:
                raise self._malformed(str(error)) from error
            if len(self._text) - end < _NUMBER_GOES_ON and self._fill():
                continue
            text = self._text[self._at : end].encode("utf-8", "surrogateescape")
            self._at = end
            self._byte += len(text)
            return text

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        return error.msg.startswith("Unterminated string") or error.pos >= len(self._text.rstrip()) - _TAIL

    def _skip_space(self) -> None:
        while True:
            end = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            self._byte += end - self._at
            self._at = end
            if self._at < len(self._text) or not self._fill():
                return

    def _fill(self) -> bool:
        """Drop what is behind and at least double the rest, so that a huge element costs linear time.

        At the end of the stream, False, and nothing moves.
        """
        block = self._stream.read(max(CHUNK_BYTES, len(self._text) - self._at))
        more = self._decode(block, final=not block)
        if not block and not more:
            return False
        self._line += self._text.count("\n", self._counted, self._at)
        self._text = self._text[self._at :] + more
        self._at = self._counted = 0
        return True

    def _malformed(self, what: str, at: int | None = None) -> DataError:
        line = self._line + self._text.count("\n", self._counted, self._at if at is None else at)
        return DataError(
            f"{self._where}:{line}: malformed JSON array: {what}. The rows behind it cannot be told apart; repair it"
        )


def without_bom(block: bytes, where: str) -> bytes:
    """The start of a text without its byte order mark.

    Raises:
        DataError: the text is UTF-16.
    """
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{where}: the text is UTF-16; convert it to UTF-8")
    return block.removeprefix(_BOM)
