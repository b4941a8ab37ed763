"""The forecast of a run as a page: what it will be given over time, and of each source in all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamsft.pages.shell import asset, escaped, page, plotly

__all__ = ["forecast_page"]

_SHOWN = 11  # sources that get a colour of their own

_COLUMNS = (
    ("asked", "share_asked", "{:.2%}"),
    ("samples", "samples", "{:,}"),
    ("tokens", "tokens", "{:,}"),
    ("supervised", "supervised_tokens", "{:,}"),
    ("passes", "passes", "{:,.2f}"),
    ("rows seen", "coverage", "{:.1%}"),
    ("steps per pass", "steps_per_pass", "{:,.0f}"),
    ("tokens cut", "cut_tokens", "{:,}"),
    ("cut", "cut_share", "{:.1%}"),
)


def forecast_page(forecast: Mapping[str, Any], *, title: str, unit: str) -> str:
    """The page.

    Args:
        forecast: the numbers, as ``streamsft forecast --json`` prints them.
        title: what the forecast is of.
        unit: what weights count, ``samples`` or ``tokens``.

    Raises:
        ConfigError: the package ``plotly`` is not installed.
    """
    charts = list(_charts(forecast, unit))
    how = "counted, source by source" if forecast["exact"] else "estimated from the first draws"
    tiles = (
        ("steps", f"{forecast['steps']:,}"),
        ("packs", f"{forecast['packs']:,}"),
        ("samples", f"{forecast['samples']:,}"),
        ("tokens", f"{forecast['tokens']:,}"),
        ("supervised tokens", f"{forecast['supervised_tokens']:,}"),
        ("packs filled", f"{forecast['packing_efficiency']:.2%}"),
        ("documents per pack", f"{forecast['documents_per_pack']:.1f}"),
    )
    shown = "".join(f'<div class="tile"><dt>{name}</dt><dd>{value}</dd></div>' for name, value in tiles)
    warnings = "".join(f"<li>{escaped(warning)}</li>" for warning in forecast["warnings"])
    return page(
        title=f"{title} · forecast · streamsft",
        header=f"<h1>Forecast of {escaped(title)}</h1>",
        body=(
            f'<p>{how}</p><dl class="tiles">{shown}</dl>'
            + (f"<h2>Warnings</h2><ul>{warnings}</ul>" if warnings else "")
            + f"<h2>Sources</h2>{_table(forecast['sources'], forecast['course'])}<h2>Over the run</h2>"
            + f'<div class="grid">{"".join(map(_figure, charts))}</div>'
            + "<footer><p>In a chart that has the focus: ← → move, + − zoom, 0 shows all.</p></footer>"
        ),
        styles=[],
        scripts=[plotly(), asset("report.js")],
        data={
            "charts": [{key: value for key, value in chart.items() if key != "note"} for chart in charts],
            "marks": [],
        },
    )


def _charts(forecast: Mapping[str, Any], unit: str) -> Iterator[dict[str, Any]]:
    sources, course = forecast["sources"], forecast["course"]
    names = sorted(sources, key=lambda name: (-sources[name]["tokens"], name))
    shown = names if len(names) <= _SHOWN + 1 else names[:_SHOWN]
    steps = course["steps"]
    groups = {name: [name] for name in shown}
    if rest := names[len(shown) :]:
        groups["others"] = rest
    given = {name: _per_step(steps, _summed(course[unit], members)) for name, members in groups.items()}
    totals = [max(sum(column), 1e-9) for column in zip(*given.values(), strict=True)]
    mix = [
        _trace(name, number, steps, [100 * value / total for value, total in zip(given[name], totals, strict=True)])
        | {"stackgroup": "mix"}
        for number, name in enumerate(groups)
    ]
    asked = [_asked(name, number, steps, _summed(course["asked"], groups[name])) for number, name in enumerate(groups)]
    yield _chart(
        "mix",
        "Mix over time",
        f"Each source's share of the {unit}, stacked; even between two windows' borders.",
        mix,
        {"yaxis": {"title": {"text": f"% of {unit}"}, "range": [0, 100]}},
    )
    share_axis = {"yaxis": {"title": {"text": f"% of {unit}"}, "rangemode": "tozero"}}
    yield _chart("asked", "Shares asked for", f"What the weights ask for, in {unit}.", asked, share_axis)
    counted = [name for name in shown if sources[name]["rows"]]
    passes = [
        _trace(name, shown.index(name), steps, [value / sources[name]["rows"] for value in course["samples"][name]])
        for name in counted
    ]
    if passes:
        yield _chart(
            "passes", "Passes", "How often each source was gone through.", passes, {"yaxis": {"rangemode": "tozero"}}
        )
    tokens = [
        _trace(name, number, steps, _summed(course["tokens"], members))
        for number, (name, members) in enumerate(groups.items())
    ]
    yield _chart("tokens", "Tokens", "Tokens given of each source.", tokens, {"yaxis": {"rangemode": "tozero"}})


def _summed(columns: Mapping[str, Sequence[float]], names: Sequence[str]) -> list[float]:
    return [sum(values) for values in zip(*(columns[name] for name in names), strict=True)]


def _per_step(steps: Sequence[int], totals: Sequence[float]) -> list[float]:
    """What was added per step between two places of a curve."""
    before, at = [0.0, *totals[:-1]], [0, *steps[:-1]]
    return [(b - a) / (q - p) for a, b, p, q in zip(before, totals, at, steps, strict=True)]


def _trace(name: str, colour: int, steps: Sequence[int], values: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(steps) > 1 else "lines+markers",
        "name": name,
        "x": list(steps),
        "y": [float(f"{value:.6g}") for value in values],
        "line": {"dash": ("solid", "dash", "dot", "dashdot")[colour % 4]},
        "meta": {"colour": colour},
    }


def _asked(name: str, colour: int, steps: Sequence[int], shares: Sequence[float]) -> dict[str, Any]:
    return _trace(name, colour, steps, [100 * share for share in shares])


def _chart(name: str, title: str, note: str, traces: list[dict[str, Any]], layout: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": name,
        "title": title,
        "note": note,
        "traces": traces,
        "layout": layout,
        "over_steps": True,
        "run": None,
    }


def _figure(chart: Mapping[str, Any]) -> str:
    name = chart["id"]
    return (
        f'<figure><figcaption><h3 id="{name}-title">{escaped(chart["title"])}</h3><p>{escaped(chart["note"])}</p>'
        f'</figcaption><div class="legend" data-for="{name}"></div>'
        f'<div class="chart" id="{name}" tabindex="0" role="group" aria-labelledby="{name}-title"></div>'
        f'<details class="numbers" data-for="{name}"><summary>Numbers</summary></details></figure>'
    )


def _table(sources: Mapping[str, Mapping[str, Any]], course: Mapping[str, Any]) -> str:
    headings = ["source", *(column[0] for column in _COLUMNS)]
    if any(len(set(shares)) > 1 for shares in course["asked"].values()):
        headings[1] += " at first"
    head = "".join(f'<th scope="col">{name}</th>' for name in headings)
    rows = "".join(
        f'<tr><th scope="row">{escaped("/".join((*source["groups"][1:], name)))}</th>'
        + "".join(f"<td>{'–' if source[key] is None else shape.format(source[key])}</td>" for _, key, shape in _COLUMNS)
        + "</tr>"
        for name, source in sources.items()
    )
    return (
        '<div class="table" tabindex="0" role="region" aria-label="Sources"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
