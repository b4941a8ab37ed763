"""Processes of a test's own that start in a moment: forks of a clean process that has imported what most need.

A new Python takes seconds of a core to import torch and the like; the server of multiprocessing's forkserver does that
once for all processes that a test process starts. What such a process is given and what it returns is pickled as on
its way to a spawned one. Where the start of Python itself is the point, a test uses `subprocess`.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import chdir
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple, final

from tests.forking import without_waiting_for_disks

__all__ = ["Ended", "Started", "context", "run", "run_streamsft", "start", "start_streamsft", "streamsft"]

_ROOT = Path(__file__).parents[1]
_IMPORTED = [
    "pytest",
    "hypothesis",
    "pandas",
    "datasets",
    "torch.distributed.device_mesh",
    "transformers.models.llama.modeling_llama",
    "streamsft.cli",
    "streamsft.commands.tokenize",
    "streamsft.commands.train",
    "streamsft.commands.validate",
    "streamsft.text.tokenizing",
    "streamsft.text.workers",
    "tests.mixes",
    "tests.pipelines",
    "tests.streams",
    "tests.training.runs",
]
"""Modules that the server has imported; the only thread that they start is of pyarrow's allocator, made for forks."""


@cache
def context() -> ForkServerContext:
    """The context of multiprocessing whose processes start so; its server runs in the folder of the project."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(_IMPORTED)
    with chdir(_ROOT):
        forkserver.ensure_running()
    return made


class Ended(NamedTuple):
    """What a process that has ended leaves."""

    returncode: int
    """As `subprocess` has it: the exit code, or minus the signal that killed it."""
    stdout: str
    stderr: str


@final
class Started:
    """A process that may be running, whose output is kept."""

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...], environment: Mapping[str, str]) -> None:
        pipes = [context().Pipe(duplex=False) for _ in range(2)]
        writers = tuple(writer for _, writer in pipes)
        given = (os.getcwd(), dict(environment), *writers, function, args)
        self.process = context().Process(target=_begin, args=given)
        self.process.start()
        atexit.register(self.process.kill)  # multiprocessing would wait for what a failed test leaves running
        self._files = [os.fdopen(os.dup(reader.fileno()), "rb") for reader, _ in pipes]
        self._read = [b"", b""]
        for reader, writer in pipes:
            reader.close()
            writer.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def readline(self) -> str:
        """Wait for the next line of standard output."""
        line = self._files[0].readline()
        self._read[0] += line
        return line.decode()

    def end(self, timeout: float = 300.0) -> Ended:
        """Wait for the process to end.

        Raises:
            TimeoutError: it has not ended within `timeout` seconds, and is killed.
        """
        readers = [threading.Thread(target=self._drain, args=(number,)) for number in range(2)]
        for reader in readers:
            reader.start()
        self.process.join(timeout)
        in_time = self.process.exitcode is not None
        self.process.kill()
        for reader in readers:
            reader.join()
        self.process.join()
        out, err = (text.decode() for text in self._read)
        if not in_time:
            raise TimeoutError(f"the process did not end within {timeout:.0f} s; it printed {out!r} and {err!r}")
        assert self.process.exitcode is not None
        return Ended(self.process.exitcode, out, err)

    def _drain(self, number: int) -> None:
        with self._files[number] as file:
            self._read[number] += file.read()


def start(function: Callable[..., object], *args: Any, environment: Mapping[str, str] | None = None) -> Started:
    """Call a function of a module in a process of its own, in this process's folder and environment.

    Args:
        function: what it raises is printed there, and makes the exit code 1; that of SystemExit is the exit code.
        args: of the function; they must be picklable.
        environment: in place of this process's.
    """
    return Started(function, args, os.environ if environment is None else environment)


def run(function: Callable[..., object], *args: Any, environment: Mapping[str, str] | None = None) -> Ended:
    """Call a function of a module in a process of its own, and wait until it has ended."""
    return start(function, *args, environment=environment).end()


def start_streamsft(*arguments: str | Path) -> Started:
    """Start the command line in a process of its own."""
    return start(streamsft, *map(str, arguments))


def run_streamsft(*arguments: str | Path) -> Ended:
    """Run the command line in a process of its own."""
    return start_streamsft(*arguments).end()


def streamsft(*arguments: str) -> None:
    """Be the command line; for a process of its own."""
    from streamsft.cli import app

    sys.argv = ["streamsft", *arguments]
    app()


def _begin(
    folder: str,
    environment: Mapping[str, str],
    out: Connection,
    err: Connection,
    function: Callable[..., object],
    args: tuple[Any, ...],
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    out.close()
    err.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes are without it
    without_waiting_for_disks()
    multiprocessing.set_start_method(None, force=True)  # Python's own again, not the server
    function(*args)
