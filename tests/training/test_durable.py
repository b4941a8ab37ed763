"""Why a file could not be written is told in words, whatever library wrote it."""

from __future__ import annotations

import errno
import os
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from streamsft.errors import RunError
from streamsft.training.checkpoint import Checkpoints
from streamsft.training.durable import why_unwritten
from tests.training.test_checkpoint import FINGERPRINT, names, save

Usage = namedtuple("Usage", "total used free")


def raised(error: Exception) -> Exception:
    """`error` as something that was raised from it."""
    try:
        try:
            raise error
        except Exception as cause:
            raise RuntimeError("outer") from cause
    except RuntimeError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "x"), "No space left on device ("),
        (raised(OSError(errno.EDQUOT, "x")), "Disk quota exceeded ("),
        (Exception("Error while serializing: I/O error: File too large (os error 27)"), "File too large ("),
        (
            RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"),
            "the file system took no",
        ),
        (TypeError("not JSON"), "TypeError: not JSON"),
    ],
)
def test_the_reason_is_the_systems(tmp_path: Path, error: Exception, reason: str) -> None:
    told = why_unwritten(error, tmp_path / "not" / "made")
    assert told.startswith(reason)
    assert "inline_container" not in told
    assert ("MB are free on " in told) == (not isinstance(error, TypeError))


def test_a_full_disk_is_seen_from_the_space_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(10**9, 10**9, 4096))
    assert why_unwritten(RuntimeError("pos"), tmp_path) == f"No space left on device (0.0 MB are free on {tmp_path})"


@pytest.mark.parametrize("older", [True, False])
def test_torch_on_a_full_disk_is_told_in_our_words(tmp_path: Path, older: bool) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    if older:
        save(tmp_path, 50)

    def fill(folder: Path) -> None:
        os.symlink("/dev/full", folder / "optimizer.pt")
        torch.save({"weights": torch.zeros(100_000)}, folder / "optimizer.pt")

    with pytest.raises(RunError) as error:
        Checkpoints(tmp_path).write(100, fill, fingerprint=FINGERPRINT, model="none")
    message = str(error.value)
    assert message.startswith(f"the checkpoint of step 100 could not be written to {tmp_path}/checkpoints: ")
    assert "nothing of it was published" in message
    assert ("the run goes on from step 50" in message) == older
    assert "run the same command again" in message
    assert "enforce" not in message
    assert names(tmp_path) == (["latest", "step-00000050"] if older else [])


def test_a_run_directory_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamsft.training.rundir import RunDirectory

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("streamsft.training.rundir.write_file", full)
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(RunError, match=r"run directory .*run: No space left on device \(.* MB are free"):
        directory.begin({"seed": 1}, keep=1)
    directory.close()
