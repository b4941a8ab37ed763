"""How every command is run: one message for what a user can mend, exit codes for scripts, and JSON for programs.

====  =================================================================================
code  is
====  =================================================================================
0     the command did what was asked, or there was nothing to do
2     something that a user can mend: the message says where, what and how
130   stopped by Ctrl-C (143 by SIGTERM); in training after a checkpoint was saved
141   what reads the output has gone
1     a fault in streamsft itself, with a traceback
====  =================================================================================
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn, ParamSpec, final

__all__ = ["Outcome", "running", "tell_misused"]

P = ParamSpec("P")

USER_ERROR = 2
SIGNALLED = 128
TOLD_SECONDS = 60.0
"""How long a rank that fails as all others do waits for rank 0 to tell why."""


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended.

    Attributes:
        data: what ``--json`` prints, as JSON values.
        exit_code: of the process.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0


class _Stopped(KeyboardInterrupt):
    """SIGTERM, so that what is half-written is removed as it is on Ctrl-C."""


def running(stopped: str) -> Callable[[Callable[P, Outcome]], Callable[P, None]]:
    """Have a function be a command: its outcome becomes an exit code and, asked with ``as_json``, the last line.

    Args:
        stopped: what is told when Ctrl-C or SIGTERM stops it: what is left behind, and how to go on.
    """

    def decorate(command: Callable[P, Outcome]) -> Callable[P, None]:
        @functools.wraps(command)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            _set_up()
            as_json = bool(kwargs.get("as_json"))
            try:
                with _kept_for_json(as_json), _terminable():
                    outcome = command(*args, **kwargs)
            except KeyboardInterrupt as interrupt:
                number = signal.SIGTERM if isinstance(interrupt, _Stopped) else signal.SIGINT
                message = f"{number.name}: {stopped}"
                _print(message)
                outcome = _failed(command.__name__, message, SIGNALLED + number)
            except BrokenPipeError:
                _end_unread()
            except SystemExit as ended:  # rich ends so when a reader has gone
                if isinstance(ended.__context__, BrokenPipeError):
                    _end_unread()
                raise
            except (ValueError, OSError, EOFError) as error:
                outcome = _told(command.__name__, error, debug=bool(kwargs.get("debug")))
            _finish(outcome, as_json)

        return run

    return decorate


def _end_unread() -> NoReturn:
    """End as a program does that is killed by SIGPIPE: what reads the output has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(SIGNALLED + signal.SIGPIPE) from None


def _told(command: str, error: Exception, *, debug: bool) -> Outcome:
    """Print an error that a user can mend, with `debug` behind its traceback; raise any other again."""
    from streamsft.errors import StreamsftError

    if not isinstance(error, StreamsftError | OSError | EOFError):  # the last of which click takes for a Ctrl-D
        raise error
    if debug:
        traceback.print_exception(error)
    if isinstance(error, StreamsftError):
        message, shared = "\n".join([str(error), *getattr(error, "__notes__", ())]), error.shared
    else:
        message, shared = f"{_system_error(error)}{'' if debug else '; --debug shows where'}", False
    _print(f"error: {message}", everywhere=not shared)
    if shared:
        _wait_until_told()
    return _failed(command, message, USER_ERROR, kind=type(error).__name__)


def tell_misused(command: str, message: str, exit_code: int) -> None:
    """Print as JSON that a command line cannot be understood."""
    _print_json(_failed(command, message, exit_code, kind="UsageError"))


def _system_error(error: OSError | EOFError) -> str:
    if isinstance(error, EOFError):
        return f"data ended early: {error}"
    what = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {what}" if error.filename else what


def _failed(command: str, message: str, exit_code: int, **more: Any) -> Outcome:
    return Outcome({"command": command, "ok": False, "error": message, **more}, exit_code)


def _finish(outcome: Outcome, as_json: bool) -> NoReturn:
    if as_json:
        _print_json(outcome)
    raise SystemExit(outcome.exit_code)


def _print_json(outcome: Outcome) -> None:
    if os.environ.get("RANK", "0") != "0":
        return
    data = {**outcome.data, "exit_code": outcome.exit_code}
    sys.stderr.flush()
    try:
        print(json.dumps(_plain(data), ensure_ascii=False, allow_nan=False), flush=True)
    except BrokenPipeError:
        _end_unread()


@contextmanager
def _kept_for_json(as_json: bool) -> Iterator[None]:
    """Where JSON is asked for, have what libraries and child processes print meanwhile go to standard error.

    Ray, for one, prints the end of a worker, and no setting of it prevents that.
    """
    if not as_json:
        yield
        return
    out = sys.stdout
    out.flush()
    with redirect_stdout(sys.stderr):
        try:
            number, other = out.fileno(), sys.stderr.fileno()
        except OSError:  # they are in memory
            yield
            return
        kept = os.dup(number)
        os.dup2(other, number)
        try:
            yield
        finally:
            out.flush()
            os.dup2(kept, number)
            os.close(kept)


def _plain(value: Any) -> Any:
    """`value` as JSON has it: paths as text, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return os.fspath(value) if isinstance(value, os.PathLike) else value


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM stop the block as Ctrl-C does; not below torchrun, where a rank that waits for others must end."""
    if "RANK" in os.environ or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise _Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _set_up() -> None:
    """Show what streamsft logs; and on a busy machine let torch's threads sleep, not spin, while they wait.

    With 11 processes on 2 cores, spinning made a step of a tiny model 25 times slower.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    first = os.environ.get("RANK", "0") == "0"
    logging.basicConfig(format="%(message)s")
    logging.getLogger("streamsft").setLevel(logging.INFO if first else logging.ERROR)


def _wait_until_told() -> None:
    """Let no rank end before rank 0 has printed what they all raise: torchrun ends the others when one does.

    Ranks that have gone, or are held up by something else, are not waited for any longer than `TOLD_SECONDS`. With the
    process group still there, gloo now and then aborted a process at its end.
    """
    from streamsft.comm import current, disconnect

    comm = current()

    def meet() -> None:
        with suppress(RuntimeError):  # a rank has gone already, so that there is nobody to wait for
            comm.barrier()
            disconnect()

    meeting = threading.Thread(target=meet, name="streamsft-told", daemon=True)
    meeting.start()
    meeting.join(TOLD_SECONDS)


def _print(message: str, *, everywhere: bool = False) -> None:
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0 or everywhere:
        where = f"rank {rank}: " if rank else ""
        print(f"{where}{message}", file=sys.stderr, flush=True)
