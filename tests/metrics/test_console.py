"""The console's table: what a person sees at a log step."""

from __future__ import annotations

import io

from rich.console import Console

from streamsft.comm import LocalComm
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.console import ConsoleSink
from tests.metrics.runs import RUN_METRICS, aggregator, batch, feed


def shown(width: int, record: dict[str, float], **options: bool) -> str:
    out = io.StringIO()
    sink = ConsoleSink(Console(file=out, width=width, **options))
    sink.rewind(5)
    sink.write(10, 0.0, record)
    sink.close()
    return out.getvalue()


def record() -> dict[str, float]:
    mine = aggregator(LocalComm())
    feed(mine, [batch(0, 200)])
    return {"train/lr": 3e-4, **mine.log()}


def test_a_log_step_is_a_line_about_the_run_and_a_row_per_source_and_mix_node() -> None:
    text = shown(120, record())
    headline, *table = text.splitlines()
    assert headline.startswith("step 10   train/lr 0.0003   train/loss ")
    assert "packing efficiency" in headline
    assert "_total" not in text
    assert [line.split()[1] for line in table if line.startswith("| ")] == [
        "source",
        "chat",
        "code",
        "math",
        "mix",
        "talk",
    ]
    assert "100.0%" in text
    assert "\x1b" not in text


def test_a_narrow_console_shows_fewer_columns_whole() -> None:
    text = shown(60, record())
    assert "samples" in text
    assert "supervised" not in text
    assert "…" not in text
    assert all(len(line) <= 60 for line in text.splitlines()[1:])


def test_a_terminal_gets_colours() -> None:
    assert "\x1b[" in shown(120, record(), force_terminal=True)


def test_names_in_brackets_are_not_taken_for_markup() -> None:
    assert "odd[red]/name 1" in shown(120, {"odd[red]/name": 1.0})


def test_a_run_without_data_metrics_shows_its_line_alone() -> None:
    mine = Aggregator([], run_metrics=RUN_METRICS)
    mine.observe("train/loss", 2.0)
    assert shown(120, mine.log()).rstrip() == "step 10   train/loss 2   train/steps 0"
