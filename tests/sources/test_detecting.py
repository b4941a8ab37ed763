"""Whether files hold tokens is looked up without an error that says less than the reading of them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from streamsft.errors import DataError
from streamsft.sources.converting import convert_store
from streamsft.sources.detecting import paths_hold_tokens
from streamsft.sources.files import RawFiles
from streamsft.sources.rawrows import iterate_rows

TEXT = b"".join(b'{"question": "%d?", "answer": "%d"}\n' % (n, n * n) for n in range(20))
TOKENS = b"".join(b'{"input_ids": [1, 2, %d], "loss_mask": [0, 1, 1]}\n' % n for n in range(20))
PACKERS = {"gz": lambda data: gzip.compress(data), "zst": zstandard.ZstdCompressor().compress}


@pytest.mark.parametrize("packer", PACKERS)
def test_compressed_rows_are_told_apart(packer: str, tmp_path: Path) -> None:
    text, tokens = tmp_path / f"text.jsonl.{packer}", tmp_path / f"tokens.jsonl.{packer}"
    text.write_bytes(PACKERS[packer](TEXT))
    tokens.write_bytes(PACKERS[packer](TOKENS))
    assert (paths_hold_tokens(text), paths_hold_tokens(tokens)) == (False, True)


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("rows", [TEXT, TOKENS], ids=["text", "tokens"])
def test_a_compressed_file_cut_anywhere_is_an_error_that_names_it(rows: bytes, packer: str, tmp_path: Path) -> None:
    """Also behind the last row, where all that is missing is the end of the stream."""
    packed = PACKERS[packer](rows)
    for kept in range(1, len(packed), 1 if len(packed) < 100 else 7):
        path = tmp_path / f"{kept}.jsonl.{packer}"
        path.write_bytes(packed[:kept])
        paths_hold_tokens(path)
        with pytest.raises(DataError, match=rf"{kept}\.jsonl\.{packer}: cannot be read"):
            list(iterate_rows(RawFiles(path)))
        with pytest.raises(DataError, match=rf"{kept}\.jsonl\.{packer}: cannot be read"):
            convert_store(path, tmp_path / "made")


@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"a":' * 100_000, b"[[[", b'"text"\n', b"\xff\xfe\n", b"{"])
def test_what_is_no_row_holds_no_tokens(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    assert paths_hold_tokens(tmp_path / "x.jsonl") is False
