import os
import signal
import threading
from types import SimpleNamespace

import pytest

from streamsft.training import signals
from streamsft.training.signals import StopSignals, signal_name


def at(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Have the signals that are noted come at these times; other threads have their own clock."""
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=iter(seconds).__next__))


def test_the_first_signal_is_noted_and_a_hasty_second_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 100.0, 101.0)
    before = signal.getsignal(signal.SIGINT)
    with StopSignals() as stop:
        assert stop.number == 0
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal_name(stop.number) == "SIGINT"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_some_seconds_later_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 100.0, 103.0)
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal_name(stop.number) == "SIGTERM"


def test_other_threads_leave_the_handlers_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def body() -> None:
        with StopSignals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [before]
