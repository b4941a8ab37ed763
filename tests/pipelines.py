"""Small pipelines for tests of building and of commands: the demo's data, few rows, few steps."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from streamsft.demodata.files import DemoFiles, write_demo

__all__ = ["demo_files", "small_config"]

_SOURCES = {
    "arithmetic": {"format": "question_answer", "weight": 2},
    "units": {"format": "alpaca", "weight": 1},
    "strings": {"format": "messages", "weight": 1},
}


@functools.cache
def demo_files() -> DemoFiles:
    """The demo's corpora with 60 rows each and its tokenizer, written once per test process."""
    return write_demo(Path(tempfile.mkdtemp(prefix="streamsft-tests-")) / "demo", rows=60)


def small_config(folder: Path, **sections: Any) -> dict[str, Any]:
    """A config over the demo's corpora that keeps its cache and its run in `folder`; `sections` replace its own."""
    files = demo_files()
    sources = {name: {"path": str(files.corpora[name]), **rest} for name, rest in _SOURCES.items()}
    config: dict[str, Any] = {
        "seed": 7,
        "sequence_length": 256,
        "tokenizer": str(files.tokenizer),
        "mix": {"sources": sources},
        "cache": {"dir": str(folder / "cache")},
        "packing": {"lookahead": 256},
        "loader": {"global_batch_size": 4},
        "metrics": {"log_every": 2},
        "train": {"steps": 4, "save_every": 2, "run_dir": str(folder / "run"), "model": "none", "audit": True},
    }
    return json.loads(json.dumps({**config, **sections}))
