"""The shipped configs are valid, carry the editor's header, and the schema beside them is the one in the code."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path

import pytest
from rich.console import Console

from streamsft.commands.validate import validate
from streamsft.config import load_config, schema
from streamsft.config_models import SECTIONS

CONFIGS = Path(__file__).parents[1] / "configs"
SHIPPED = sorted(CONFIGS.glob("*.yaml"))


def test_there_are_shipped_configs() -> None:
    assert {file.stem for file in SHIPPED} >= {
        "quickstart",
        "real-mix",
        "nested",
        "streamed-mix",
        "instruct-mix",
        "preference",
    }


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_a_shipped_config_is_valid_and_names_its_schema(file: Path) -> None:
    load_config(file)
    assert file.read_text().startswith("# yaml-language-server: $schema=schema.json\n")


def test_the_schema_file_is_up_to_date() -> None:
    written = json.loads((CONFIGS / "schema.json").read_text())
    assert written == schema(), "run: python -m streamsft.config > configs/schema.json"


def test_the_document_names_every_key_of_every_section() -> None:
    text = (CONFIGS.parent / "docs" / "config.md").read_text()
    for section, model in SECTIONS.items():
        prefix = "".join("<name>." if part == "*" else f"{part}." for part in section)
        for key in model.model_fields:
            assert f"| `{prefix}{key}` |" in text or (key,) in SECTIONS, f"{prefix}{key}"


def test_a_mix_of_datasets_of_the_hub_is_valid_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something looked for a host")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    console = Console(file=io.StringIO(), width=200)
    validate(CONFIGS / "instruct-mix.yaml", console=console)
    assert "teknium/OpenHermes-2.5 on the hub, not looked up, streamed" in console.file.getvalue()  # type: ignore[attr-defined]
