"""`ConsoleSink`: the record of a log step as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, final

from streamsft.metrics.record import is_evaluation
from streamsft.shown import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["ConsoleSink"]

_COLUMNS = (  # heading, metric, how its numbers are shown
    ("samples", "samples", "count"),
    ("tokens", "tokens", "count"),
    ("asked", "share_asked", "share"),
    ("of\nsamples", "share_samples", "share"),
    ("of\ntokens", "share_tokens", "share"),
    ("passes", "passes", "decimal"),
    ("length\np50", "length_p50", "count"),
    ("p95", "length_p95", "count"),
    ("truncated", "truncated", "count"),
    ("supervised", "supervised_tokens", "count"),
)
_RUN = (("tokens", "count"), ("packing_efficiency", "share"))


@final
class ConsoleSink:
    """Prints, at each log step, one line about the run and a table with a row per source and mix node.

    On a terminal it is coloured; elsewhere it is plain text, 120 columns wide. Where the columns do not fit beside each
    other, the table goes on below with the others; none is left out. Large numbers have three digits and a unit: 12.3M.

    Args:
        console: where to print; standard output by default.
        prefix: the aggregator's prefix, by which the keys of sources are known.
        names: sources and mix nodes to show, in this order; by default all in the record, in its order.
    """

    def __init__(
        self, console: Console | None = None, *, prefix: str = "data_", names: Sequence[str] | None = None
    ) -> None:
        from rich.console import Console

        if console is None:
            console = Console()
            if not console.is_terminal:
                console = Console(width=120, no_color=True, highlight=False)
        self.console = console
        self.prefix = prefix
        self.names = names

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self.console.print(self._headline(step, metrics), markup=False, highlight=False, soft_wrap=True)
        for table in self._tables(metrics):
            self.console.print(table)

    def rewind(self, step: int) -> None:
        """What was printed stays."""

    def close(self) -> None:
        """Nothing is held back."""

    def _headline(self, step: int, metrics: Mapping[str, float]) -> str:
        root = self.prefix.rstrip("_") or "data"
        parts = [f"step {step}"]
        for key, value in metrics.items():
            group, _, name = key.rpartition("/")
            if name != "loss" and is_evaluation(key):
                continue  # how much was evaluated, which stays the same
            if group != root and not group.startswith(self.prefix) and not name.endswith("_total"):
                parts.append(f"{key} {_show(value, 'number')}")
        for name, kind in _RUN:
            if f"{root}/{name}" in metrics:
                parts.append(f"{name.replace('_', ' ')} {_show(metrics[f'{root}/{name}'], kind)}")
        return "   ".join(parts)

    def _tables(self, metrics: Mapping[str, float]) -> Iterator[Table]:
        """The table, in as many parts below each other as the console's width makes necessary."""
        found = [key[len(self.prefix) :].partition("/")[0] for key in metrics if key.startswith(self.prefix)]
        names = list(dict.fromkeys(found)) if self.names is None else self.names
        columns = [c for c in _COLUMNS if any(f"{self.prefix}{name}/{c[1]}" in metrics for name in names)]
        wide = self.console.options.update(width=10_000)
        while columns:
            count = len(columns)
            table = self._with_columns(metrics, names, columns)
            while count > 1 and self.console.measure(table, options=wide).maximum > self.console.width:
                count -= 1
                table = self._with_columns(metrics, names, columns[:count])
            yield table
            columns = columns[count:]

    def _with_columns(
        self, metrics: Mapping[str, float], names: Sequence[str], columns: Sequence[tuple[str, str, str]]
    ) -> Table:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD if self.console.is_terminal else box.ASCII2)
        table.add_column("source", overflow="fold", max_width=max(12, self.console.width // 3))
        for heading, _, _ in columns:
            table.add_column(heading, justify="right", no_wrap=True)
        for name in names:
            values = [metrics.get(f"{self.prefix}{name}/{metric}") for _, metric, _ in columns]
            cells = ["" if v is None else _show(v, c[2]) for v, c in zip(values, columns, strict=True)]
            table.add_row(name, *cells)
        return table


def _show(value: float, kind: str) -> str:
    match kind:
        case "count":
            return counted(value)
        case "decimal":
            return f"{value:.2f}" if value < 1_000 else counted(value)
        case "share":
            return f"{value:.1%}"
        case _:
            return f"{value:.4g}"
