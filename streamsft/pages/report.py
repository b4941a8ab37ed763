"""The report of one run, or of several beside each other, as a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from streamsft.pages.charts import Chart, Palette, source_charts
from streamsft.pages.runs import Run
from streamsft.pages.shell import asset, escaped, page, plotly
from streamsft.pages.trends import whole_charts

__all__ = ["report_page"]

_COLUMNS = (  # heading, metric, how its numbers are shown
    ("samples", "samples", "count"),
    ("tokens", "tokens", "count"),
    ("supervised tokens", "supervised_tokens", "count"),
    ("passes", "passes", "decimal"),
    ("asked", "share_asked", "share"),
    ("of samples", "share_samples", "share"),
    ("of tokens", "share_tokens", "share"),
    ("length mean", "length_mean", "decimal"),
    ("p50", "length_p50", "count"),
    ("p95", "length_p95", "count"),
    ("longest", "length_max", "count"),
    ("turns mean", "supervised_turns_mean", "decimal"),
    ("truncated", "truncated", "count"),
    ("tokens cut", "truncated_tokens", "count"),
    ("rejected", "rejected", "count"),
    ("dropped", "dropped", "count"),
)


def report_page(runs: Sequence[Run]) -> str:
    """The page.

    Raises:
        ConfigError: the package ``plotly`` is not installed.
    """
    palette = Palette(runs)
    several = len(runs) > 1
    whole = whole_charts(runs)
    by_source = [
        source_charts(run, palette, number, f", {run.name}" if several else "") for number, run in enumerate(runs)
    ]
    title = " and ".join(run.name for run in runs)
    sections = [
        _section("At a glance", _notices(runs) + (_tiles(runs[0]) if not several else _comparison(runs))),
        *(_section(f"Sources of {run.name}" if several else "Sources", _sources(run)) for run in runs),
        _section("What was fed", _legend(runs) + _grid([chart for charts in _paired(by_source) for chart in charts])),
        _section("How it went", _grid(whole)),
        _section("Resumes and edits of the mix", "".join(map(_events, runs))),
        _section("Every number of the last record", "".join(map(_numbers, runs))),
        _section("Config", _differences(runs) + "".join(map(_config, runs))),
    ]
    keys = "In a chart that has the focus: ← → move, + − zoom, 0 shows all."
    data = {
        "charts": [chart.to_json() for charts in [*by_source, whole] for chart in charts],
        "marks": [list(_marks(run)) for run in runs],
    }
    return page(
        title=f"{title} · streamsft",
        header=f"<h1>{escaped(title)}</h1>",
        body="\n".join(sections) + f"<footer><p>{keys}</p></footer>",
        styles=[],
        scripts=[plotly(), asset("report.js")],
        data=data,
    )


def _paired(charts: Sequence[Sequence[Chart]]) -> list[list[Chart]]:
    """The charts of several runs, those of the same kind beside each other."""
    kinds = dict.fromkeys(chart.id.rpartition("-")[0] for of_run in charts for chart in of_run)
    return [[c for of_run in charts for c in of_run if c.id.rpartition("-")[0] == kind] for kind in kinds]


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escaped(title)}</h2>{content}</section>"


def _grid(charts: Sequence[Chart]) -> str:
    figures = "".join(
        f'<figure><figcaption><h3 id="{chart.id}-title">{escaped(chart.title)}</h3><p>{escaped(chart.note)}</p>'
        f'</figcaption><div class="legend" data-for="{chart.id}"></div>'
        f'<div class="chart" id="{chart.id}" tabindex="0" role="group" aria-labelledby="{chart.id}-title"></div>'
        f'<details class="numbers" data-for="{chart.id}"><summary>Numbers</summary></details></figure>'
        for chart in charts
    )
    return f'<div class="grid">{figures}</div>'


def shown(value: float | None, kind: str) -> str:
    """A number as text."""
    if value is None:
        return "–"
    match kind:
        case "count":
            return f"{value:,.0f}"
        case "share":
            return f"{value:.1%}"
        case "decimal":
            return f"{value:,.2f}"
        case "short":
            return f"{value:.3g}"
        case _:
            return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _cell(value: float | None, kind: str) -> str:
    return f'<td data-value="{"" if value is None else value!r}">{shown(value, kind)}</td>'


def _table(head: Sequence[str], rows: Iterator[str], label: str) -> str:
    cells = "".join(f'<th scope="col">{escaped(name)}</th>' for name in head)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escaped(label)}"><table><thead><tr>{cells}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _headline(run: Run) -> list[tuple[str, float | None, str]]:
    """What is said of a run first: label, number, how it is shown."""
    of = {name: run.last.get(f"{run.root}/{name}") for name in ("samples", "tokens", "supervised_tokens", "packs")}
    return [
        ("steps", run.steps[-1], "count"),
        ("samples", of["samples"], "count"),
        ("tokens", of["tokens"], "count"),
        ("supervised tokens", of["supervised_tokens"], "count"),
        ("packs", of["packs"], "count"),
        ("packing efficiency", run.last.get(f"{run.root}/packing_efficiency"), "share"),
        ("documents per pack", run.last.get(f"{run.root}/documents_per_pack"), "decimal"),
        ("slots a second", run.overall("train/slots_per_second"), "count"),
        ("seconds a step waited for data", run.last.get("train/data_wait_seconds_total"), "short"),
        ("loss", run.last.get("train/loss"), "short"),
        ("resumes", sum(leg["step"] > 0 for leg in run.legs), "count"),
        ("edits of the mix", len(run.edits), "count"),
    ]


def _tiles(run: Run) -> str:
    tiles = "".join(
        f'<div class="tile"><dt>{escaped(label)}</dt><dd data-value="{value!r}">{shown(value, kind)}</dd></div>'
        for label, value, kind in _headline(run)
        if value is not None
    )
    return f'<dl class="tiles">{tiles}</dl>'


def _notices(runs: Sequence[Run]) -> str:
    """What of the runs' files the page leaves out."""
    return "".join(f'<p class="notice">{escaped(notice)}.</p>' for run in runs for notice in run.notices)


def _comparison(runs: Sequence[Run]) -> str:
    columns = [_headline(run) for run in runs]

    def rows() -> Iterator[str]:
        for cells in zip(*columns, strict=True):
            label, kind = cells[0][0], cells[0][2]
            yield f'<tr><th scope="row">{label}</th>{"".join(_cell(value, kind) for _, value, _ in cells)}</tr>'

    return _table(["", *(run.name for run in runs)], rows(), "The runs beside each other")


def _sources(run: Run) -> str:
    columns = [column for column in _COLUMNS if any(run.of(name, column[1]) is not None for name in run.sources)]

    def rows() -> Iterator[str]:
        for name in run.sources:
            cells = "".join(_cell(run.of(name, metric), kind) for _, metric, kind in columns)
            yield f'<tr data-source="{escaped(name)}"><th scope="row">{escaped(name)}</th>{cells}</tr>'

    at_last = {"asked": "asked at last"} if run.changes("share_asked") else {}
    headings = [at_last.get(heading, heading) for heading, _, _ in columns]
    return _table(["source", *headings], rows(), f"Sources of {run.name}")


def _marks(run: Run) -> Iterator[dict[str, Any]]:
    for leg in run.legs:
        if leg["step"]:
            yield {"step": leg["step"], "kind": "resume", "text": f"resumed on {_ranks(leg)}, {_moment(leg['time'])}"}
    for edit in run.edits:
        parts = [f"{what} {', '.join(edit[what])}" for what in ("added", "removed", "changed") if edit.get(what)]
        parts += [f"{name} {_share(old)} → {_share(new)}" for name, (old, new) in edit.get("shares", {}).items()]
        yield {"step": edit["step"], "kind": "edit", "text": "; ".join(parts) or "weights by step"}


def _legend(runs: Sequence[Run]) -> str:
    """What the marks over charts mean, where there are any."""
    kinds = {mark["kind"] for run in runs for mark in _marks(run)}
    signs = [("resume", "↻ resumed behind this step"), ("edit", "◆ the mix was edited behind it")]
    said = ", ".join(text for kind, text in signs if kind in kinds)
    return f"<p>Marks: {said}.</p>" if said else ""


def _ranks(leg: Mapping[str, Any]) -> str:
    return "1 rank" if leg["ranks"] == 1 else f"{leg['ranks']} ranks"


def _share(share: float | None) -> str:
    return "none" if share is None else f"{share:.2%}"


def _events(run: Run) -> str:
    begun = [leg for leg in run.legs if not leg["step"]]

    def rows() -> Iterator[str]:
        for leg in begun:
            yield _event("0", "begun", f"on {_ranks(leg)}, {_moment(leg['time'])}")
        for mark in sorted(_marks(run), key=lambda mark: mark["step"]):
            yield _event(f"{mark['step']:,}", mark["kind"], mark["text"])

    every = -(-run.count // len(run.steps))
    records = "1 record" if run.count == 1 else f"{run.count:,} records"
    note = f"<p>{escaped(run.name)}: {records} up to {_moment(run.times[-1])}"
    note += f", of which one in {every} is drawn.</p>" if every > 1 else ".</p>"
    table = _table(["behind step", "what", "how"], rows(), f"Resumes and edits of {run.name}")
    return f'<div class="words">{note}{table}</div>'


def _event(step: str, kind: str, text: str) -> str:
    return f'<tr><td>{step}</td><td class="text">{kind}</td><td class="text">{escaped(text)}</td></tr>'


def _moment(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _numbers(run: Run) -> str:
    rows = (f'<tr><th scope="row">{escaped(key)}</th>{_cell(run.last[key], "number")}</tr>' for key in sorted(run.last))
    table = _table(["key", "value"], rows, f"The last record of {run.name}")
    return f"<details><summary>{escaped(run.name)}, step {run.steps[-1]:,}</summary>{table}</details>"


def _config(run: Run) -> str:
    text = json.dumps(run.config, indent=2, ensure_ascii=False) if run.config else "it was not kept"
    return f"<details><summary>{escaped(run.name)}</summary><pre tabindex=0>{escaped(text)}</pre></details>"


def _differences(runs: Sequence[Run]) -> str:
    """The keys in which the configs of several runs differ, where there are any."""
    flat = [dict(_flat(run.config, "")) for run in runs]
    keys = sorted({key for config in flat for key in config})
    differing = [key for key in keys if len({json.dumps(config.get(key)) for config in flat}) > 1]
    if not differing:
        return ""
    rows = (
        f'<tr><th scope="row">{escaped(key)}</th>'
        + "".join(f"<td>{escaped(json.dumps(config.get(key)))}</td>" for config in flat)
        + "</tr>"
        for key in differing
    )
    return _table(["key", *(run.name for run in runs)], rows, "Where the configs differ")


def _flat(value: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from _flat(inner, f"{path}{key}.")
        else:
            yield f"{path}{key}", inner
