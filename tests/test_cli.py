"""The command line: light to start, one clear message for what a user can mend, exit codes that scripts can use."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from streamsft import __version__
from streamsft.cli import app
from streamsft.cli_docs import JSON_KEYS
from streamsft.cli_options import _keys
from tests.pipelines import demo_files, small_config
from tests.ports import held_port
from tests.processes import run_streamsft, start, streamsft

CONFIGS = Path(__file__).parents[1] / "configs"
COMMANDS = (
    "demo",
    "validate",
    "tokenize",
    "preview",
    "train",
    "init",
    "forecast",
    "explain",
    "inspect",
    "convert",
    "report",
    "version",
)
runner = CliRunner()


def write(folder: Path) -> Path:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(small_config(folder)))
    return file


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=lambda c: c[0] if c else "app")
def test_help_is_there_for_every_command(command: tuple[str, ...]) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage: " in result.output
    if not command:
        assert all(f"  {name}" in result.output for name in COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from streamsft.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'datasets', 'pyarrow', 'numpy', 'pydantic', 'rich', 'yaml'}\n"
        "print('heavy:', *sorted(heavy & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "heavy:"


def test_version_names_what_a_bug_report_needs() -> None:
    shown = runner.invoke(app, ["version"]).output
    assert f"streamsft {__version__}" in shown
    assert "torch " in shown
    assert "python 3." in shown


@pytest.mark.parametrize("command", ["validate", "tokenize", "preview", "train"])
def test_a_mistake_is_one_message_without_a_traceback_and_exit_code_2(tmp_path: Path, command: str) -> None:
    result = runner.invoke(app, [command, str(write(tmp_path)), "train.stepz=3", "sede=4"])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path}/config.yaml: 2 things are wrong\n")
    assert "did you mean 'steps'?" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("given", [["convert", "x"], ["report", "--nope"], ["no-such"]], ids=" ".join)
def test_a_command_line_that_cannot_be_understood_is_told_as_json_too(given: list[str]) -> None:
    result = runner.invoke(app, [*given, "--json"])
    told = json.loads(result.stdout)
    assert (result.exit_code, told["exit_code"], told["ok"], told["command"]) == (2, 2, False, given[0])
    assert told["error"] in result.stderr
    assert not runner.invoke(app, given).stdout


def test_debug_shows_where_an_error_was_raised(tmp_path: Path) -> None:
    result = run_streamsft("validate", tmp_path / "none.yaml", "--debug")
    assert "Traceback" in result.stderr
    assert "there is no such config file" in result.stderr
    told = runner.invoke(app, ["validate", str(tmp_path / "none.yaml")])
    assert told.exit_code == 2
    assert told.stderr == f"error: {tmp_path}/none.yaml: there is no such config file\n"


def test_the_package_is_a_program_too() -> None:
    command = [sys.executable, "-m", "streamsft", "no-such", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 2
    assert json.loads(result.stdout)["command"] == "no-such"
    assert "No such command" in result.stderr


def test_a_source_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    result = runner.invoke(app, ["train", str(write(tmp_path)), "mix.sources.units.path=no/units.json"])
    assert result.exit_code == 2
    assert "error: source units: no/units.json: no such file" in result.stderr


def test_the_commands_work_one_after_another(tmp_path: Path) -> None:
    config = write(tmp_path)
    for arguments, expected in (
        (["validate"], "the config is valid"),
        (["tokenize", "--processes", "1"], "rejected rows are in"),
        (["tokenize", "--verify"], "strings"),
        (["preview", "--packs", "1", "--draws", "100"], "of them filled"),
        (["preview", "--row", "units:3"], "rendered as alpaca"),
        (["train", "train.steps=2"], "done: 2 steps"),
        (["train", "--quiet"], "done: 4 steps"),
        (["train", "--quiet"], "nothing to do: step 4 of 4 is done"),
    ):
        command, *rest = arguments
        result = runner.invoke(app, [command, str(config), *rest])
        assert result.exit_code == 0, result.output
        assert expected in result.output
    lines = (tmp_path / "run" / "audit" / "rank-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]


def test_every_command_prints_one_json_object_with_the_keys_that_the_page_promises(tmp_path: Path) -> None:
    config = str(write(tmp_path))
    for arguments in (
        ["version"],
        ["validate", config],
        ["tokenize", config],
        ["preview", config, "--draws", "50"],
        ["train", config, "train.steps=2"],
        ["demo", str(tmp_path / "demo"), "train.steps=1", "train.model=none", "loader.global_batch_size=1"],
    ):
        result = runner.invoke(app, [*arguments, "--json"])
        assert result.exit_code == 0, result.output
        (line,) = result.stdout.splitlines()
        shown = json.loads(line)
        assert (shown["command"], shown["ok"], shown["exit_code"]) == (arguments[0], True, 0)
        promised = set(re.findall(r"`(\w+)`", JSON_KEYS["train" if arguments[0] == "demo" else arguments[0]]))
        inside = next(iter(shown.get("sources", {}).values()), {})
        deeper = {key for value in inside.values() if isinstance(value, dict) for key in value}
        absent = promised - shown.keys() - inside.keys() - deeper - {"row"} - {"rejected"}
        assert not absent, absent
    row = json.loads(runner.invoke(app, ["preview", config, "--row", "strings:20", "--json"]).stdout)
    assert row["row"] == "strings:20"
    assert row["rejected"] == "no_assistant_turn"
    wrong = runner.invoke(app, ["validate", config, "sede=1", "--json"])
    assert wrong.exit_code == 2
    assert json.loads(wrong.stdout)["kind"] == "ConfigError"
    assert wrong.stderr.startswith("error: ")


def test_quiet_training_says_when_it_begins_saves_and_ends(tmp_path: Path) -> None:
    config = str(write(tmp_path))
    first = run_streamsft("train", config, "-q", "train.steps=2")
    assert first.stdout == (
        f"train: 2 steps, in {tmp_path}/run\n"
        f"done: 2 steps, in {tmp_path}/run (metrics.jsonl; checkpoints/step-00000002)\n"
    )
    assert "step 2 of 2: checkpoint saved\n" in first.stderr
    second = run_streamsft("train", config, "-q")
    assert f"going on from step 2 in {tmp_path}/run\n" in second.stderr
    third = runner.invoke(app, ["train", config, "-q"])
    assert third.exit_code == 0
    assert "nothing to do: step 4 of 4 is done" in third.stdout
    assert "such as train.steps=8" in third.stdout


def test_the_version_is_an_option_too() -> None:
    assert runner.invoke(app, ["--version"]).output == f"streamsft {__version__}\n"


def test_shells_complete_the_keys_of_overrides() -> None:
    assert "train.steps=" in _keys("train.s")
    assert all(key.startswith("train.s") for key in _keys("train.s"))
    assert "--install-completion" in runner.invoke(app, ["--help"]).output


def test_a_run_of_another_stream_is_refused_and_fresh_moves_it(tmp_path: Path) -> None:
    config = str(write(tmp_path))
    assert runner.invoke(app, ["train", config, "-q"]).exit_code == 0
    refused = runner.invoke(app, ["train", config, "-q", "seed=9"])
    assert refused.exit_code == 2
    assert "seed: 7 in the state, 9 here" in refused.stderr
    assert runner.invoke(app, ["train", config, "-q", "seed=9", "--fresh"]).exit_code == 0
    assert (tmp_path / "run.1" / "audit" / "rank-0.jsonl").exists()


def test_demo_takes_a_folder_and_overrides(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    arguments = ["demo", str(folder), "train.steps=3", "metrics.log_every=1", "loader.global_batch_size=2"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    for expected in ("3 steps were made, and the loss went from", "What to try next", f"streamsft preview {folder}"):
        assert expected in result.output
    again = runner.invoke(app, arguments)
    assert again.exit_code == 0
    assert "the run was at step 3 already" in again.output
    assert runner.invoke(app, ["demo", str(demo_files().corpora["units"].parent)]).exit_code == 2


def test_torchrun_ranks_share_the_steps_of_one_process(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    for folder in (alone, shared):
        folder.mkdir()
        write(folder)
    assert runner.invoke(app, ["train", str(alone / "config.yaml"), "-q"]).exit_code == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "streamsft", "train", shared / "config.yaml"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("done: 4 steps") == 1
    ranks = [_packs(shared, rank) for rank in range(2)]
    assert [one + other for one, other in zip(*ranks, strict=True)] == _packs(alone, 0)


def test_an_error_ends_all_ranks_with_one_message(tmp_path: Path) -> None:
    arguments = ("train", str(write(tmp_path)), "mix.sources.units.path=no/units.json")
    with held_port() as port:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", **place} for rank in "01"]
        started = [start(streamsft, *arguments, environment={**os.environ, **rank}) for rank in ranks]
        ended = [process.end() for process in started]
    assert [rank.returncode for rank in ended] == [2, 2]
    assert "".join(rank.stderr for rank in ended).count("error: source units: no/units.json: no such file") == 1


def _packs(folder: Path, rank: int) -> list[list[object]]:
    lines = (folder / "run" / "audit" / f"rank-{rank}.jsonl").read_text().splitlines()
    return [json.loads(line)["packs"] for line in lines]


def test_the_other_shipped_configs_are_valid_over_their_data(test_data: Path) -> None:
    environment = {"STREAMSFT_TEST_DATA": str(test_data), "DEMO": str(demo_files().folder)}
    for name in ("nested", "quickstart"):
        result = runner.invoke(app, ["validate", str(CONFIGS / f"{name}.yaml")], env=environment)
        assert result.exit_code == 0, result.output


def test_the_real_mix_runs_and_tells_its_rejections(test_data: Path, tmp_path: Path) -> None:
    steps = ["train.steps=300", "train.save_every=300", "metrics.log_every=300"]
    overrides = ["train.model=none", "metrics.sinks=[]", *steps]
    places = [f"train.run_dir={tmp_path / 'run'}", f"cache.dir={tmp_path / 'cache'}"]
    arguments = ["train", str(CONFIGS / "real-mix.yaml"), *overrides, *places]
    result = runner.invoke(app, arguments, env={"STREAMSFT_TEST_DATA": str(test_data)})
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())["metrics"]
    assert record["data/packing_efficiency"] > 0.99
    assert record["data_gsm8k/share_samples"] == pytest.approx(record["data_gsm8k/share_asked"], abs=0.01)
    rejected = sum(record[f"data_{name}/rejected"] for name in ("gsm8k", "toolformer", "fastchat", "identity"))
    assert rejected == 0
    listed = [line for file in tmp_path.glob("cache/stores/*/rejected.jsonl") for line in file.read_text().splitlines()]
    assert len(listed) == record["data_mix/rejected"]
