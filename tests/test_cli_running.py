"""What all commands have in common: exit codes, one message for an error, JSON, and what is told when they stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamsft import cli_running, comm
from streamsft.cli_running import Outcome, running
from streamsft.errors import DataError
from tests import processes
from tests.pipelines import demo_files, small_config


def run(body: Callable[[], Outcome], **options: Any) -> int:
    @running("stopped; nothing is left")
    def command(*, as_json: bool = False, debug: bool = False) -> Outcome:
        return body()

    with pytest.raises(SystemExit) as ended:
        command(**options)
    return int(ended.value.code or 0)


def failing(error: BaseException) -> Callable[[], Outcome]:
    def body() -> Outcome:
        raise error

    return body


def test_an_outcome_is_an_exit_code_and_with_json_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"path": Path("a"), "loss": float("nan"), "rows": [1, (2, Path("b"))], "deep": {"x": {3: None}}}
    assert run(lambda: Outcome(data, 143)) == 143
    assert capsys.readouterr().out == ""
    assert run(lambda: Outcome(data, 143), as_json=True) == 143
    assert json.loads(capsys.readouterr().out) == {
        "path": "a", "loss": None, "rows": [1, [2, "b"]], "deep": {"x": {"3": None}}, "exit_code": 143,
    }  # fmt: skip


def print_much(as_json: bool) -> None:
    """In a process of its own: a command whose libraries and children print."""

    def body() -> Outcome:
        print("a library")
        os.write(1, b"another, in C\n")
        subprocess.run(["echo", "a child"], check=True)
        return Outcome({"rows": 3})

    run(body, as_json=as_json)


def test_with_json_nothing_else_gets_on_standard_output() -> None:
    ended = processes.run(print_much, True)
    assert json.loads(ended.stdout) == {"rows": 3, "exit_code": 0}
    printed = ["a child", "a library", "another, in C"]
    assert sorted(ended.stderr.splitlines()) == printed
    assert sorted(processes.run(print_much, False).stdout.splitlines()) == printed


def test_an_error_is_one_message_with_its_notes_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    error = DataError("rows.jsonl:3: bad")
    error.add_note("  config.yaml:7: mix")
    assert run(failing(error), as_json=True) == 2
    shown = capsys.readouterr()
    assert shown.err == "error: rows.jsonl:3: bad\n  config.yaml:7: mix\n"
    assert json.loads(shown.out) == {
        "command": "command", "ok": False, "error": "rows.jsonl:3: bad\n  config.yaml:7: mix", "kind": "DataError",
        "exit_code": 2,
    }  # fmt: skip


class Gone:
    """A group of ranks of which some do not come to a barrier any more."""

    def __init__(self, released: threading.Event | None) -> None:
        self.released = released

    def barrier(self) -> None:
        if self.released is None:
            raise RuntimeError("connection closed by peer")
        self.released.wait()


@pytest.mark.parametrize("hangs", [True, False])
def test_what_all_ranks_raise_is_told_though_another_rank_has_gone(
    hangs: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(cli_running, "TOLD_SECONDS", 0.05)
    monkeypatch.setattr(comm, "current", lambda: Gone(released if hangs else None))
    error = DataError("a.jsonl:7: no")
    error.shared = True
    assert run(failing(error)) == 2
    assert capsys.readouterr().err == "error: a.jsonl:7: no\n"
    released.set()


def test_what_the_system_refuses_is_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(PermissionError(13, "Permission denied", "/some/file"))) == 2
    assert capsys.readouterr().err == "error: /some/file: Permission denied; --debug shows where\n"


def test_debug_and_faults_of_our_own_show_where(capsys: pytest.CaptureFixture[str]) -> None:
    @running("stopped")
    def command(*, debug: bool = False) -> Outcome:
        raise DataError("bad") if debug else ValueError("ours")

    assert run(lambda: command(debug=True)) == 2
    assert re.fullmatch(r"Traceback .*DataError: bad\nerror: bad\n", capsys.readouterr().err, re.DOTALL)
    with pytest.raises(ValueError, match="ours"):
        command()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_says_what_is_left(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
    before = signal.getsignal(signal.SIGTERM)

    def body() -> Outcome:
        os.kill(os.getpid(), number)
        return Outcome()

    assert run(body, as_json=True) == 128 + number
    shown = capsys.readouterr()
    assert shown.err == f"{number.name}: stopped; nothing is left\n"
    assert json.loads(shown.out)["exit_code"] == 128 + number
    assert signal.getsignal(signal.SIGTERM) == before


def unread(file: str) -> None:
    """In a process of its own: validate a config, with nobody to read what is printed."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    processes.streamsft("validate", file)


def test_a_reader_that_has_gone_ends_a_command_as_it_ends_other_programs(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(small_config(tmp_path)))
    ended = processes.run(unread, str(file))
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tokenizing_that_is_stopped_leaves_nothing_half_written(tmp_path: Path, number: signal.Signals) -> None:
    """The second source is a pipe, so that the process surely waits in the middle of its work when it is stopped."""
    config = small_config(tmp_path)
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    config["mix"]["sources"] = {"units": config["mix"]["sources"]["units"], "pipe": {"path": str(pipe), "weight": 1}}
    config["mix"]["sources"]["pipe"]["format"] = "messages"
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(config))
    process = processes.start_streamsft("tokenize", file, "-j", "1", "--json")
    with pipe.open("wb", buffering=0) as writer:  # opens when the process reads
        os.kill(process.pid, number)
        returncode, out, err = process.end()
        assert writer.fileno() >= 0
    assert returncode == 128 + number
    assert f"{number.name}: stopped; nothing half-written is left" in err
    assert "Traceback" not in err
    assert json.loads(out)["ok"] is False
    stores = list((tmp_path / "cache" / "stores").iterdir())
    assert len(stores) == 1, "the source that was tokenized whole is kept, and nothing else"
    assert (stores[0] / "streamsft.json").exists()
    assert demo_files().folder.exists()
