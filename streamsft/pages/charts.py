"""The charts of a report, as Plotly figures without colours: the page gives them those of its theme."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from streamsft.pages.runs import Run, Series

__all__ = ["DASHES", "Chart", "Palette", "line_trace", "source_charts"]

_SHOWN = 11
"""Sources that get a colour of their own; the others are drawn as one."""
REST = "others"
DASHES = ("solid", "dash", "dot", "dashdot")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart.

    Attributes:
        id: of its element.
        title: above it.
        note: what it shows, in a sentence.
        traces: Plotly traces; ``meta.colour`` is the number of its colour in the page's palette.
        layout: Plotly layout, beside what the page sets for all charts.
        over_steps: whether the x axis is the steps of the run, on which resumes and edits are marked.
        run: number of the run whose marks are drawn; None: of all.
    """

    id: str
    title: str
    note: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    over_steps: bool = True
    run: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As the page's script takes it."""
        return {name: getattr(self, name) for name in ("id", "title", "traces", "layout", "over_steps", "run")}


@final
class Palette:
    """Which sources are drawn, in which order and colour: the same in all charts and runs."""

    def __init__(self, runs: Sequence[Run]) -> None:
        tokens: dict[str, float] = {}
        for run in runs:
            for name in run.sources:
                tokens[name] = tokens.get(name, 0) + (run.of(name, "tokens") or 0)
        names = sorted(tokens, key=lambda name: (-tokens[name], name))
        shown = _SHOWN + 1 if len(names) == _SHOWN + 1 else _SHOWN
        self.shown, self.rest = names[:shown], names[shown:]
        self.colours = {name: number for number, name in enumerate([*self.shown, REST])}

    def groups(self) -> list[tuple[str, list[str]]]:
        """What is drawn, and the sources in it."""
        return [(name, [name]) for name in self.shown] + ([(REST, self.rest)] if self.rest else [])


def source_charts(run: Run, palette: Palette, number: int, suffix: str) -> list[Chart]:
    """The charts that have a part for each source, of one run."""

    def chart(name: str, title: str, note: str, traces: list[dict[str, Any]], **rest: Any) -> Chart:
        return Chart(id=f"{name}-{number}", title=title + suffix, note=note, traces=traces, run=number, **rest)

    charts = [*_over_steps(run, palette, chart), *_over_documents(run, palette, chart)]
    return [chart for chart in charts if chart.traces]


def _over_steps(run: Run, palette: Palette, chart: Callable[..., Chart]) -> list[Chart]:
    unit = run.unit
    mix = _stack(run, palette, f"share_{unit}_interval", scale=100)
    percent = {"yaxis": {"title": {"text": f"% of {unit}"}, "range": [0, 100]}}
    return [
        chart(
            "mix",
            "Mix over time",
            f"Each source's share of the {unit} between two records, stacked; dashed: the shares asked for.",
            mix + _asked(run, palette),
            layout=percent,
        ),
        chart(
            "tokens",
            "Tokens by source",
            "Tokens since the run began, stacked.",
            _stack(run, palette, "tokens"),
            layout={"yaxis": {"title": {"text": "tokens"}}},
        ),
        chart(
            "passes",
            "Passes by source",
            "How often the rows of each source have come, on average.",
            _lines(run, palette, "passes"),
            layout={"yaxis": {"title": {"text": "passes"}, "rangemode": "tozero"}},
        ),
    ]


def _over_documents(run: Run, palette: Palette, chart: Callable[..., Chart]) -> list[Chart]:
    return [
        _lengths(run, palette, chart),
        chart(
            "share",
            "Supervised share of documents",
            "Documents by the share of their tokens that have a label.",
            _distribution(run, palette, "share_supervised"),
            layout={"xaxis": {"title": {"text": "supervised share"}}, "yaxis": {"title": {"text": "documents"}}},
            over_steps=False,
        ),
        chart(
            "turns",
            "Supervised turns",
            "Documents by the number of their stretches of labelled tokens.",
            _turns(run, palette),
            layout={
                "barmode": "stack",
                "xaxis": {"title": {"text": "supervised turns"}, "type": "category"},
                "yaxis": {"title": {"text": "documents"}},
            },
            over_steps=False,
        ),
        chart(
            "unused",
            "Rows that are not used",
            "Rejected and dropped rows by reason, and documents that were truncated.",
            _unused(run, palette),
            layout={"barmode": "stack", "xaxis": {"title": {"text": "rows"}}, "yaxis": {"autorange": "reversed"}},
            over_steps=False,
        ),
    ]


def _lengths(run: Run, palette: Palette, chart: Callable[..., Chart]) -> Chart:
    traces = _distribution(run, palette, "length")
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "tokens in the document"}, "type": "log"},
        "yaxis": {"title": {"text": "documents"}},
    }
    note = "Documents by their length in the batch, stacked."
    if run.sequence_length and traces:
        layout["shapes"] = [{"type": "line", "x0": run.sequence_length, "x1": run.sequence_length, "meta": "limit"}]
        note += f" The line is sequence_length, {run.sequence_length:,} tokens, where longer rows are cut."
    return chart("lengths", "Document lengths", note, traces, layout=layout, over_steps=False)


def _added(parts: Iterable[Series]) -> Series:
    """The sum of series, point by point; None where none has a value."""
    return [sum(v for v in values if v is not None) if any(v is not None for v in values) else None
            for values in zip(*parts, strict=True)]  # fmt: skip


def line_trace(name: str, colour: int, x: Sequence[Any], y: Sequence[Any], **rest: Any) -> dict[str, Any]:
    """A Plotly trace that is a line, with points where there is a value with none beside it, which no line shows."""
    there = [value is not None for value in y]
    alone = any(
        here and not before and not after
        for before, here, after in zip([False, *there], there, [*there[1:], False], strict=False)
    )
    mode = "lines+markers" if alone else "lines"
    return {"type": "scatter", "mode": mode, "name": name, "x": x, "y": y, "meta": {"colour": colour}, **rest}


def _stack(run: Run, palette: Palette, metric: str, scale: float = 1) -> list[dict[str, Any]]:
    traces = []
    for name, members in palette.groups():
        values = _added(run.source_series(member, metric) for member in members)
        if any(value is not None for value in values):
            points = [0 if value is None else value * scale for value in values]
            traces.append(line_trace(name, palette.colours[name], run.steps, points, stackgroup="one"))
    return traces


def _asked(run: Run, palette: Palette) -> list[dict[str, Any]]:
    """The borders between the shares asked for, as lines upon the stack."""
    below = [0.0] * len(run.steps)
    traces = []
    for name, members in palette.groups():
        asked = _added(run.source_series(member, "share_asked") for member in members)
        if all(value is None for value in asked):
            continue
        shares = [100 * (value or 0.0) for value in asked]
        below = [low + share for low, share in zip(below, shares, strict=True)]
        texts = [f"{share:.4g} %" for share in shares]
        line = {"dash": "dash", "width": 2, "shape": "linear"}
        hover = f"{name} asked: %{{text}}<extra></extra>"
        trace = line_trace(f"{name}, asked", palette.colours[name], run.steps, below, line=line, text=texts)
        traces.append({**trace, "hovertemplate": hover, "meta": {"colour": palette.colours[name], "asked": True}})
    return traces


def _lines(run: Run, palette: Palette, metric: str) -> list[dict[str, Any]]:
    traces = []
    for number, name in enumerate(palette.shown):
        values = run.source_series(name, metric)
        if any(value is not None for value in values):
            line = {"dash": DASHES[number % len(DASHES)], "width": 2}
            traces.append(line_trace(name, palette.colours[name], run.steps, values, line=line))
    return traces


def _distribution(run: Run, palette: Palette, metric: str) -> list[dict[str, Any]]:
    """Counts by bucket as stacked steps; the buckets are the same for all sources."""
    found = _buckets(run, palette, metric)
    edges = sorted({edge for counts in found.values() for bucket in counts for edge in bucket})
    traces = []
    for name, counts in found.items():
        by_edge = {low: count for (low, _), count in counts.items()}
        heights = [by_edge.get(edge, 0) for edge in edges]
        line = {"shape": "hv", "width": 1}
        traces.append(line_trace(name, palette.colours[name], edges, heights, line=line, stackgroup="one"))
    return traces


def _turns(run: Run, palette: Palette) -> list[dict[str, Any]]:
    """Counts by whole number, and by range where buckets are wider, as stacked bars."""
    found = _buckets(run, palette, "supervised_turns")
    buckets = sorted({bucket for counts in found.values() for bucket in counts})
    labels = [f"{high:g}" if high - low == 1 else f"{low + 1:g}–{high:g}" for low, high in buckets]
    return [
        {
            "type": "bar",
            "name": name,
            "x": labels,
            "y": [counts[bucket] for bucket in buckets],
            "meta": {"colour": palette.colours[name]},
        }
        for name, counts in found.items()
    ]


def _buckets(run: Run, palette: Palette, metric: str) -> dict[str, Counter[tuple[float, float]]]:
    """What is drawn → its documents by bucket, of those that have any."""
    found = {}
    for name, members in palette.groups():
        counts: Counter[tuple[float, float]] = Counter()
        for member in members:
            counts.update(run.histograms.get(f"{run.prefix}{member}/{metric}", {}))
        if counts:
            found[name] = counts
    return found


def _unused(run: Run, palette: Palette) -> list[dict[str, Any]]:
    by_source = {name: run.reasons(name) for name in run.sources}
    for name, reasons in by_source.items():
        if cut := run.of(name, "truncated"):
            reasons["truncated"] = int(cut)
    total: dict[str, int] = {}
    for reasons in by_source.values():
        for reason, count in reasons.items():
            total[reason] = total.get(reason, 0) + count
    order = sorted(total, key=lambda reason: (-total[reason], reason))
    labels = [reason.replace("_", " ").replace("rejected ", "rejected: ").replace("dropped ", "dropped: ")
              for reason in order]  # fmt: skip
    traces = []
    for name, members in palette.groups():
        counts = [sum(by_source.get(member, {}).get(reason, 0) for member in members) for reason in order]
        if any(counts):
            bar = {"type": "bar", "orientation": "h", "name": name, "x": counts, "y": labels}
            traces.append({**bar, "meta": {"colour": palette.colours[name]}})
    return traces
