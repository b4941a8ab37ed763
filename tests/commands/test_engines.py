"""The engine that a command line names: what there is, and what goes with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from streamsft.cli import app
from streamsft.commands.engines import opened_engine
from streamsft.errors import ConfigError
from streamsft.ray_connecting import connect
from streamsft.text.workers import LocalEngine
from tests.pipelines import small_config
from tests.ports import held_port


def test_an_engine_that_is_given_goes_on_behind_the_block() -> None:
    engine = LocalEngine(1)
    with opened_engine(engine) as same:
        assert same is engine
    with pytest.raises(ConfigError, match="leave processes and address out"):
        opened_engine(engine, processes=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"engine": "spark"}, "engine: 'spark'; use local or ray"),
        ({"engine": "local", "address": "auto"}, "address: 'auto' is of a Ray cluster"),
        ({"engine": "local", "processes": 0}, "processes: 0; give 1 or more"),
        ({"engine": "ray", "processes": 0}, "processes: 0; give 1 or more"),
    ],
)
def test_what_does_not_go_together(given: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opened_engine(**given)


def test_ray_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(small_config(tmp_path)))
    result = CliRunner().invoke(app, ["tokenize", str(config), "--engine", "ray"])
    assert result.exit_code == 2
    assert result.stderr == "error: engine ray: Ray is not installed: pip install 'streamsft[ray]'\n"


def test_what_was_there_already_is_in_the_json(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(small_config(tmp_path)))
    for rows in (0, 60):
        result = CliRunner().invoke(app, ["tokenize", str(config), "--json"])
        assert result.exit_code == 0, result.stderr
        done = json.loads(result.stdout)["sources"]["units"]["not_tokenized_again"]
        assert done == {"rows": rows, "files": 1 if rows else 0, "parts": 0}


def test_an_address_at_which_nobody_listens_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_port() as port:
        for address in (f"127.0.0.1:{port}", f"ray://localhost:{port}"):
            with pytest.raises(
                ConfigError, match=rf"{address} cannot be reached: no connection to port {port} of .*ray"
            ):
                connect(None, address, None)
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        with pytest.raises(ConfigError, match=rf"auto, which is RAY_ADDRESS=127\.0\.0\.1:{port}, cannot be reached"):
            connect(None, "auto", None)
    with pytest.raises(ConfigError, match=r"address head:port: .*; give HOST:PORT, ray://HOST:PORT or auto"):
        connect(None, "head:port", None)
