import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from streamsft.training.audit import pack_digest, rewind_audit


def lines(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def written(path: Path, steps: range, tail: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps({"step": s, "packs": "x" * 500}).encode() + b"\n" for s in steps) + tail)
    return path


def test_digest_is_that_of_the_little_endian_bytes_of_ids_then_labels() -> None:
    ids, labels = np.array([1, 2, 300]), np.array([-100, 2, 300])
    plain = b"".join(int(v).to_bytes(8, "little", signed=True) for v in [*ids, *labels])
    assert pack_digest(ids, labels) == hashlib.blake2b(plain, digest_size=16).hexdigest()
    assert pack_digest(ids.astype(np.int32), labels) == pack_digest(ids, labels)


@pytest.mark.parametrize("step", [0, 1, 7, 500, 998, 999, 2000])
def test_rewinding_keeps_exactly_the_lines_up_to_the_step(tmp_path: Path, step: int) -> None:
    path = written(tmp_path / "audit" / "rank-0.jsonl", range(1, 1000))
    assert rewind_audit(path.parent, step) == min(step, 999)
    assert lines(path) == list(range(1, min(step, 999) + 1))


def test_rewinding_reaches_the_files_of_ranks_that_are_gone(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"rank-{r}.jsonl", range(1, 20)) for r in (0, 1, 17)]
    other = written(tmp_path / "notes.jsonl", range(1, 20))
    rewind_audit(tmp_path, 5)
    assert [lines(p) for p in paths] == [list(range(1, 6))] * 3
    assert lines(other) == list(range(1, 20))


@pytest.mark.parametrize("tail", [b'{"step": 4, "pa', b"\0\0\0\0\n", b"null\n", b'{"step": "4"}\n', b"\n\n"])
def test_a_half_written_line_is_dropped(tmp_path: Path, tail: bytes) -> None:
    path = written(tmp_path / "rank-0.jsonl", range(1, 4), tail)
    rewind_audit(tmp_path, 3)
    assert lines(path) == [1, 2, 3]


def test_a_folder_without_files_is_left_alone(tmp_path: Path) -> None:
    assert rewind_audit(tmp_path / "missing", 3) == 0
    (tmp_path / "rank-0.jsonl").touch()
    rewind_audit(tmp_path, 3)
    assert (tmp_path / "rank-0.jsonl").read_bytes() == b""
