"""What docs/scale.md and its sbatch file say to type: it can be parsed, and is what the programs take."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser
from typer.main import get_command

from streamsft.cli import app
from streamsft.config import load_config
from tests.pipelines import small_config
from tests.test_docs import ROOT, blocks

SCRIPT = ROOT / "docs" / "slurm.sbatch"
PAGE = ROOT / "docs" / "scale.md"
STUB = """#!/usr/bin/env bash
printf '%s' "$(basename "$0")" >> "$CALLS"; printf ' %q' "$@" >> "$CALLS"; printf '\\n' >> "$CALLS"
"""
SBATCH_OPTIONS = (
    "--job-name --nodes --ntasks-per-node --gpus-per-node --cpus-per-task --time --signal --requeue --open-mode"
)


def parsed(command: list[str]) -> None:
    """Take a command as its program would, as far as its options go.

    Raises:
        SystemExit, click.UsageError: it would be refused.
    """
    if command[0] == "torchrun":
        options = get_args_parser().parse_args(command[1:])
        assert options.module, "a rank is a module"
        command = [options.training_script, *options.training_script_args]
    program, name, *rest = command
    assert program == "streamsft"
    group: Any = get_command(app)
    group.commands[name].make_context(name, rest)


def calls(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, list[list[str]]]:
    """The script's exit code, and what it calls, in a folder with programs that only note that."""
    for name in ("srun", "scontrol"):
        stub = tmp_path / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(STUB + ("echo node-a\n" if name == "scontrol" else ""))
        stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    noted = tmp_path / "calls"
    noted.write_text("")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    job = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_JOB_NUM_NODES": "2"}
    gpus = {"SLURM_GPUS_ON_NODE": "8", "CALLS": str(noted), "PATH": path}
    ended = subprocess.run(["bash", SCRIPT, *arguments], env=os.environ | job | gpus | environment, check=False)
    return ended.returncode, [shlex.split(line) for line in noted.read_text().splitlines()]


def test_the_sbatch_file_is_valid_and_its_options_known() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    given = re.findall(r"^#SBATCH (--[\w-]+)", SCRIPT.read_text(), re.MULTILINE)
    assert given == SBATCH_OPTIONS.split()
    before_commands = SCRIPT.read_text().split("set -euo")[0]
    assert before_commands.count("#SBATCH") == len(given), "sbatch reads no options behind the first command"


@pytest.mark.parametrize("own_cache", [False, True])
def test_the_sbatch_file_tokenizes_then_trains_with_commands_that_exist(tmp_path: Path, own_cache: bool) -> None:
    config = tmp_path / "with space.yaml"
    config.write_text(yaml.safe_dump(small_config(tmp_path)))
    code, called = calls(tmp_path, str(config), "loader.workers=4", NODE_CACHE=str(int(own_cache)))
    assert code == 0
    tokenize, listed, train = called
    assert listed[:3] == ["scontrol", "show", "hostnames"]
    once = ["srun"] if own_cache else ["srun", "--nodes=1", "--ntasks=1"]
    assert tokenize[: len(once)] == once
    parsed(tokenize[len(once) :])
    assert tokenize[-2:] == train[-2:] == [str(config), "loader.workers=4"]
    assert train[0] == "srun"
    parsed(train[1:])
    options = get_args_parser().parse_args(train[2:])
    assert (options.nnodes, options.nproc_per_node, options.rdzv_endpoint) == ("2", "8", "node-a:29500")


def test_the_sbatch_file_wants_a_config(tmp_path: Path) -> None:
    assert calls(tmp_path) == (2, [])


def test_the_commands_of_the_page_exist() -> None:
    lines = [line for block in blocks(PAGE) if block.language == "bash" for line in block.text.splitlines()]
    commands = [shlex.split(line.rpartition(" && ")[2]) for line in lines]
    run = [command for command in commands if command[0] in ("torchrun", "streamsft")]
    assert len(run) >= 2
    for command in run:
        parsed(command)
    others = {command[0] for command in commands if command not in run}
    assert others <= {"sbatch", "python"}


def test_the_keys_of_the_page_are_those_of_a_config(tmp_path: Path) -> None:
    settings = [yaml.safe_load(block.text) for block in blocks(PAGE) if block.language == "yaml"]
    assert settings
    for given in settings:
        load_config(small_config(tmp_path, **given))
