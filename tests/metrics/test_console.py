"""The console's table: what a person sees at a log step."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from streamsft.comm import LocalComm
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.console import ConsoleSink
from streamsft.shown import counted
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
        "|",  # headings of two lines
        "source",
        "chat",
        "code",
        "math",
        "mix",
        "talk",
    ]
    assert "100.0%" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e12])
@pytest.mark.parametrize("terminal", [False, True])
def test_no_column_and_no_digit_is_left_out_however_narrow_the_console(
    width: int, scale: float, terminal: bool
) -> None:
    numbers = {key: value * (1 if "share" in key else scale) for key, value in record().items()}
    numbers = {key.replace("data_math/", "data_a-source-with-a-long-name/"): v for key, v in numbers.items()}
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown(width, numbers, force_terminal=terminal))
    for heading in ("asked", "of", "samples", "tokens", "passes", "length", "p50", "p95", "truncated", "supervised"):
        assert heading in text, heading
    assert "…" not in text
    table = text.splitlines()[1:]
    assert all(len(line) <= width for line in table)
    for name in ("samples", "supervised_tokens", "length_p95"):
        assert counted(numbers[f"data_a-source-with-a-long-name/{name}"]) in text


def test_a_terminal_gets_colours() -> None:
    assert "\x1b[" in shown(120, record(), force_terminal=True)


def test_names_in_brackets_are_not_taken_for_markup() -> None:
    assert "odd[red]/name 1" in shown(120, {"odd[red]/name": 1.0})


def test_a_run_without_data_metrics_shows_its_line_alone() -> None:
    mine = Aggregator([], run_metrics=RUN_METRICS)
    mine.observe("train/loss", 2.0)
    assert shown(120, mine.log()).rstrip() == "step 10   train/loss 2   train/steps 0"
