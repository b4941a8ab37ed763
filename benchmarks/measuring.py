"""What the benchmarks share: rounds in turn, so that a busy machine slows all contenders alike, and the output."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass
class Contender:
    """Something that yields batches without end.

    Attributes:
        make: starts it; called once, then a few batches are taken to warm up.
        tokens: real tokens (not padding) of a batch.
        rates: batches per second, one number a round.
    """

    name: str
    make: Callable[[], Iterator[Any]]
    tokens: Callable[[Any], int]
    rates: list[float] = field(default_factory=list)
    fill: float = 0.0

    @property
    def rate(self) -> float:
        """Batches per second: the median round."""
        return median(self.rates)


def measure(contenders: list[Contender], *, seconds: float, rounds: int, warm_up: int, slots: int) -> None:
    """Run all contenders for `seconds`, `rounds` times in turn; `slots` is the number of slots of a batch."""
    running = [(contender, contender.make()) for contender in contenders]
    for contender, batches in running:
        filled = sum(contender.tokens(next(batches)) for _ in range(warm_up))
        contender.fill = filled / (warm_up * slots)
    for _ in range(rounds):
        for contender, batches in running:
            contender.rates.append(_rate(batches, seconds))


def _rate(batches: Iterator[Any], seconds: float) -> float:
    count, start = 0, time.perf_counter()
    while True:
        next(batches)
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return count / elapsed


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, the figures mean little")
    return parser


def report(
    title: str, columns: list[str], rows: list[list[str]], figures: Mapping[str, float], *, as_json: bool
) -> None:
    """Print a table and the figures; with `as_json`, the figures as the last line."""
    console = Console()
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for name, value in figures.items():
        console.print(f"{name:>24}  {value:,.4g}", highlight=False)
    if as_json:
        print(json.dumps(dict(figures)))
