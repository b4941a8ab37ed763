import json
import os
import re
import signal
from pathlib import Path

import pytest

from streamsft.errors import RunError
from streamsft.training import rundir
from streamsft.training.rundir import RunDirectory
from tests.processes import start
from tests.training.test_checkpoint import save

MINE = {"seed": 7, "sequence_length": 64, "sources": {"a": ["ab12", 0.5], "b": ["cd34", 0.5]}}


def test_an_empty_directory_begins_at_nothing_and_remembers_its_stream(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "runs" / "one")
    assert directory.begin(MINE, keep=2) is None
    directory.close()
    assert json.loads((tmp_path / "runs" / "one" / "run.json").read_text())["fingerprint"] == MINE


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_another_stream_is_refused_with_every_difference_and_both_values(tmp_path: Path, with_checkpoint: bool) -> None:
    directory = RunDirectory(tmp_path)
    directory.begin({"seed": 7, "sources": {"a": ["ab12", 0.5]}}, keep=2)
    if with_checkpoint:
        save(tmp_path, 50)  # its fingerprint is that of the stream above
        (tmp_path / "run.json").unlink()
    (tmp_path / "checkpoints" / ".partial-step-00000100").mkdir(parents=True)
    other = {"seed": 8, "sources": {"a": ["ab12", 0.25], "c": ["ef56", 0.75]}}
    with pytest.raises(RunError) as caught:
        directory.begin(other, keep=2)
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "--fresh" in message
    for line in ("seed: 7 .* 8", "mix.sources.a.weight, .*: 0.5 .* 0.25", "mix.sources.c: here, not .*"):
        assert any(_fits(line, shown) for shown in message.splitlines()), line
    assert (tmp_path / "checkpoints" / ".partial-step-00000100").exists(), "a refusal changes nothing"


def _fits(pattern: str, line: str) -> bool:
    return re.search(pattern, line) is not None


def test_fresh_moves_the_old_run_to_the_first_free_name(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for number in (None, "run.1", "run.2"):
        directory = RunDirectory(path, fresh=True)
        assert (directory.moved_to.name if directory.moved_to else None) == number
        directory.begin({"seed": number}, keep=2)
        directory.close()
    assert json.loads((tmp_path / "run.2" / "run.json").read_text())["fingerprint"] == {"seed": "run.1"}


def test_fresh_leaves_files_that_are_no_run_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    directory = RunDirectory(tmp_path, fresh=True)
    directory.close()
    assert directory.moved_to is None
    assert (tmp_path / "thesis.tex").exists()


def hold(path: Path) -> None:
    """In a process of its own: use the directory until the process is killed."""
    directory = RunDirectory(path)
    print("held", flush=True)
    signal.pause()
    directory.close()


def test_a_directory_in_use_is_refused_until_its_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "_LOCK_WAIT_S", 0.0)
    holder = start(hold, tmp_path)
    assert holder.readline() == "held\n"
    with pytest.raises(RunError, match="in use by another process"):
        RunDirectory(tmp_path)
    os.kill(holder.pid, signal.SIGKILL)
    holder.end()
    RunDirectory(tmp_path).close()


def test_a_path_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file/run: Not a directory; choose another"):
        RunDirectory(tmp_path / "file" / "run")


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 99}'])
def test_an_unreadable_record_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunError, match=r"run.json.*--fresh"):
        RunDirectory(tmp_path).begin(MINE, keep=2)


def test_records_that_no_run_of_ours_wrote_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(RunError, match=r"has metrics.jsonl, but no run.json"):
        RunDirectory(tmp_path).begin(MINE, keep=2)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'
    (tmp_path / "metrics.jsonl").write_text("")
    assert RunDirectory(tmp_path).begin(MINE, keep=2) is None
