"""The notebooks run from scratch, in seconds, and print what is committed with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def printed(cell: Any) -> str:
    """What a cell wrote on standard output, and how it shows its values as text; pictures apart."""
    texts = []
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream" and output["name"] == "stdout":
            texts.append(output["text"])
        elif "image/png" not in output.get("data", {}):
            texts.append(str(output.get("data", {}).get("text/plain", "")))
    return "".join(texts)


def pictures(cell: Any) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_says(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    committed = nbformat.read(path, as_version=4)
    executed = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(executed, timeout=600, startup_timeout=600, resources=place).execute()
    assert len(committed.cells) > 5
    for before, after in zip(committed.cells, executed.cells, strict=True):
        assert printed(after) == printed(before), before["source"]
        assert pictures(after) == pictures(before), before["source"]


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["mixes", "quickstart"]
