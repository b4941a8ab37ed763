"""The report: in a real browser it draws everything without an error, and its numbers are those of the run's files."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamsft.cli import app
from streamsft.commands.report import report
from streamsft.commands.train import train
from streamsft.errors import ConfigError, RunError
from streamsft.pages.charts import Palette, line_trace, source_charts
from streamsft.pages.report import report_page
from streamsft.pages.runs import Run, read_run
from streamsft.pages.trends import whole_charts
from tests.pages.browser import Browser, open_page
from tests.pipelines import small_config

STEPS = (8, 16, 24)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a schedule that was gone on with, with an edit of the mix, and gone on with again."""
    folder = tmp_path_factory.mktemp("report")
    config = small_config(folder, sequence_length=128)
    config["mix"]["sources"]["arithmetic"]["weight"] = {"0": 1, "20": 4}
    config["train"] |= {"save_every": 8, "steps": STEPS[0]}
    train(config, quiet=True)
    config["mix"]["sources"]["more"] = {**config["mix"]["sources"]["units"], "weight": 2}
    train(config, overrides=[f"train.steps={STEPS[1]}"], accept_changes=True, quiet=True)
    train(config, overrides=[f"train.steps={STEPS[2]}"], quiet=True)
    return folder / "run"


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_numbers_on_the_page_are_those_of_the_records(run: Path, browser: Browser) -> None:
    page = report(run)
    assert page == run / "report.html"
    written = records(run)
    last = written[-1]["metrics"]
    with open_page(browser, page) as tab:
        assert tab.evaluate("document.documentElement.dataset.drawn") == str(tab.locator(".chart").count())
        assert tab.locator(".chart").count() >= 10
        rows = tab.evaluate(
            "[...document.querySelectorAll('tr[data-source]')].map(row => [row.dataset.source,"
            " [...row.querySelectorAll('td')].map(cell => Number(cell.dataset.value))])"
        )
        heads = tab.evaluate("[...document.querySelectorAll('tr[data-source]')[0].closest('table').tHead.rows[0].cells]"
                             ".map(cell => cell.textContent)")  # fmt: skip
        assert {name for name, _ in rows} == {"arithmetic", "strings", "units", "more"}
        for name, values in rows:
            shown = dict(zip(heads[1:], values, strict=True))
            for heading, metric in (("samples", "samples"), ("tokens", "tokens"), ("asked at last", "share_asked"),
                                    ("supervised tokens", "supervised_tokens"), ("passes", "passes"),
                                    ("rejected", "rejected"), ("truncated", "truncated")):  # fmt: skip
                assert shown[heading] == last[f"data_{name}/{metric}"], (name, metric)
        traces = tab.evaluate("document.getElementById('tokens-0').data.map(t => [t.name, t.x, t.y])")
        assert len(traces) == 4
        for name, x, y in traces:
            assert x == [record["step"] for record in written]
            assert y == [record["metrics"].get(f"data_{name}/tokens") or 0 for record in written]
        mix = tab.evaluate("document.getElementById('mix-0').data.filter(t => !t.meta.asked).map(t => [t.name, t.y])")
        for name, y in mix:
            expected = [100 * (r["metrics"].get(f"data_{name}/share_samples_interval") or 0) for r in written]
            assert y == pytest.approx(expected)
        everything = tab.evaluate(
            "Object.fromEntries([...document.querySelectorAll('details tbody tr')]"
            ".filter(row => row.cells.length === 2 && row.cells[1].dataset.value !== undefined)"
            ".map(row => [row.cells[0].textContent, Number(row.cells[1].dataset.value)]))"
        )
        assert everything == last


def test_histograms_add_up_to_the_documents_and_show_where_rows_are_cut(run: Path) -> None:
    found = read_run(run)
    last = records(run)[-1]["metrics"]
    assert sum(found.histograms["data_mix/length"].values()) == last["data/documents"]
    charts = {chart.id: chart for chart in source_charts(found, Palette([found]), 0, "")}
    assert sum(sum(trace["y"]) for trace in charts["lengths-0"].traces) == last["data/documents"]
    assert charts["lengths-0"].layout["shapes"][0]["x0"] == 128
    unused = {(trace["name"], reason): count
              for trace in charts["unused-0"].traces
              for reason, count in zip(trace["y"], trace["x"], strict=True) if count}  # fmt: skip
    assert unused["arithmetic", "rejected: empty turn"] == 1
    assert unused["strings", "truncated"] == last["data_strings/truncated"]


def test_a_rate_is_told_over_all_of_a_run(run: Path) -> None:
    found = read_run(run)
    rates = [rate for rate in found.series("train/slots_per_second") if rate]
    assert len(rates) == len(found.steps) > 2
    steps = [now - before for before, now in zip([0, *found.steps], found.steps, strict=False)]
    seconds = sum(count / rate for count, rate in zip(steps, rates, strict=True))
    assert found.overall("train/slots_per_second") == pytest.approx(found.steps[-1] / seconds)
    assert found.overall("train/no_such_number") is None


def test_asked_shares_follow_schedule_and_edit_and_realised_ones_follow_them(run: Path) -> None:
    found = read_run(run)
    asked = found.source_series("arithmetic", "share_asked")
    at = dict(zip(found.steps, asked, strict=True))
    assert at[8] == pytest.approx((1 + 3 * 8 / 20) / (1 + 3 * 8 / 20 + 2))
    assert at[24] == pytest.approx(4 / 8)
    assert found.source_series("more", "share_asked")[0] is None


def test_resumes_and_edits_are_told_and_marked(run: Path) -> None:
    text = report_page([read_run(run)])
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text).group(1))  # type: ignore[union-attr]
    (marks,) = data["marks"]
    assert [(mark["step"], mark["kind"]) for mark in marks] == [(8, "resume"), (16, "resume"), (8, "edit")]
    assert "added more" in marks[2]["text"]
    assert re.search(r"<td>8</td><td class=\"text\">edit</td>", text)


def test_the_page_can_be_used_without_a_mouse_in_both_themes_and_on_a_phone(run: Path, browser: Browser) -> None:
    page = report(run)
    with open_page(browser, page, width=390) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        light = tab.evaluate("document.getElementById('tokens-0').data[0].line.color")
        tab.locator("#theme").focus()
        tab.keyboard.press("Enter")
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
        assert tab.evaluate("document.getElementById('tokens-0').data[0].line.color") != light
        first = tab.locator('.legend[data-for="tokens-0"] button').first
        first.focus()
        tab.keyboard.press("Space")
        tab.wait_for_function("document.getElementById('tokens-0').data[0].visible === 'legendonly'")
        before = tab.evaluate("document.getElementById('tokens-0').layout.xaxis.range")
        tab.locator("#tokens-0").focus()
        tab.keyboard.press("+")
        tab.wait_for_function(f"document.getElementById('tokens-0').layout.xaxis.range[0] > {before[0]}")
        tab.locator('.numbers[data-for="tokens-0"] summary').focus()
        tab.keyboard.press("Enter")
        tab.wait_for_selector('.numbers[data-for="tokens-0"] table')
        assert tab.locator('.numbers[data-for="tokens-0"] tbody tr').count() == len(records(run))
    with open_page(browser, page, dark=True) as tab:
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"


def test_two_runs_are_compared(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser) -> None:
    other = small_config(tmp_path)
    train(other, overrides=["train.steps=6", "seed=8"], quiet=True)
    monkeypatch.chdir(tmp_path)
    page = report([run, tmp_path / "run"])
    assert page == Path("report.html")
    names = [str(run), str(tmp_path / "run")]
    with open_page(browser, page.resolve()) as tab:
        assert tab.locator("h1").text_content() == " and ".join(names)
        lines = tab.evaluate("document.getElementById('packing').data.map(t => [t.name, t.x.length])")
        assert lines == [[names[0], 12], [names[1], 3]]
        assert tab.locator("#mix-0").count() == tab.locator("#mix-1").count() == 1
        table = tab.locator("section", has_text="Config").last
        assert "seed" in table.text_content()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"metrics\.jsonl: there is no such file; give the train\.run_dir"),
        ({"metrics.jsonl": ""}, "no record yet"),
        ({"metrics.jsonl": '{"step": 1, "time": 0, "metrics": {}}\nnonsense\n'}, r"metrics\.jsonl:2: not a record"),
        ({"metrics.jsonl": '{"step": "x"}\n'}, r"metrics\.jsonl:1: not a record \('step' is 'x'\)"),
        ({"metrics.jsonl": '{"step": 1, "time": 0}\n'}, r"metrics\.jsonl:1: not a record \('metrics'\)"),
        ({"metrics.jsonl": '{"step": 1, "time": 0, "metrics": {}}\n', "run.json": "{"}, r"run\.json cannot be read"),
    ],
)
def test_what_is_no_run_is_told(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(RunError, match=message):
        report(tmp_path)
    with pytest.raises(ConfigError, match="one run or more"):
        report([])


def test_the_command_writes_the_page_and_says_where(run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(run), "--out", str(tmp_path / "x.html")])
    assert (result.exit_code, result.output.strip()) == (0, str(tmp_path / "x.html"))
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")
    failed = CliRunner().invoke(app, ["report", str(run), "--out", str(tmp_path / "no" / "x.html")])
    assert failed.exit_code == 2


def test_a_last_line_that_was_cut_is_told_on_the_page_and_in_the_terminal(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(run, tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 26, "ti')
    said = f"{tmp_path}/run/metrics.jsonl: the last line, {len(records(run)) + 1}, has no end and is left out"
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--json"])
    assert result.exit_code == 0
    assert [record.getMessage()[: len(said)] for record in caplog.records] == [said]
    assert [notice[: len(said)] for notice in json.loads(result.stdout)["notices"]] == [said]
    assert f'<p class="notice">{said}' in (tmp_path / "run" / "report.html").read_text()
    assert not read_run(run).notices


def test_a_missing_plotly_is_named_with_the_cure(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ConfigError, match=r"pip install 'streamsft\[report\]'"):
        report_page([read_run(run)])


def lone(tmp_path: Path, sources: int, count: int) -> Run:
    """A run of a loop of one's own, of which there is nothing but records."""
    lines = []
    for step in range(1, count + 1):
        metrics: dict[str, float | None] = {f"data_s{n}/tokens": step * (n + 1) for n in range(sources)}
        lines.append(json.dumps({"step": step, "time": step, "metrics": {**metrics, "train/loss": None, "a<b": 1}}))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"unfinished": ')
    return read_run(tmp_path)


def test_many_sources_and_long_runs_stay_readable(tmp_path: Path) -> None:
    found = lone(tmp_path, sources=30, count=4001)
    assert (len(found.steps), found.steps[-1], found.count) == (1334, 4001, 4001)
    charts = {chart.id: chart for chart in source_charts(found, Palette([found]), 0, "")}
    names = [trace["name"] for trace in charts["tokens-0"].traces]
    assert (len(names), names[0], names[-1]) == (12, "s29", "others")
    assert sum(trace["y"][-1] for trace in charts["tokens-0"].traces) == sum(4001 * (n + 1) for n in range(30))
    assert [chart.id for chart in whole_charts([found])] == []
    text = report_page([found])
    assert "a&lt;b" in text
    assert "of which one in 3 is drawn" in text


def test_the_name_of_a_run_is_text_and_not_html(tmp_path: Path) -> None:
    (tmp_path / "a<b>").mkdir()
    assert "a<b>" not in report_page([lone(tmp_path / "a<b>", sources=1, count=2)])


def test_every_figure_is_one_that_plotly_knows(run: Path) -> None:
    import plotly.graph_objects as go

    found = read_run(run)
    for chart in [*source_charts(found, Palette([found]), 0, ""), *whole_charts([found, found])]:
        layout = {key: value for key, value in chart.layout.items() if key != "shapes"}
        go.Figure(data=chart.traces, layout=layout)


def test_the_page_names_no_host(run: Path) -> None:
    text = report_page([read_run(run)])
    ours = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"https?://", ours)
    assert '<link rel="stylesheet"' not in text


def test_a_value_that_no_line_leads_to_is_drawn_as_a_point(tmp_path: Path, browser: Browser) -> None:
    run = lone(tmp_path, sources=2, count=1)
    (trace, _) = source_charts(run, Palette([run]), 0, "")[0].traces
    assert trace["mode"] == "lines+markers"
    for values, mode in (([1, 2], "lines"), ([None, 1, None, 2, 3], "lines+markers"), ([1, 2, None, 3, 4], "lines"),
                         ([None, None, 5], "lines+markers")):  # fmt: skip
        assert line_trace("a", 0, list(range(len(values))), values)["mode"] == mode
    (tmp_path / "x.html").write_text(report_page([run]))
    with open_page(browser, tmp_path / "x.html") as tab:
        assert tab.locator("#tokens-0 .points path").count() == 2
        assert "1 record up to" in tab.locator(".words").inner_text()
