"""Write everything a demo needs into one folder that can be moved and read elsewhere."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import final

from streamsft.demodata.corpora import ROWS, write_corpora
from streamsft.demodata.tokenizer import train_tokenizer
from streamsft.errors import ConfigError

__all__ = ["DemoFiles", "write_demo"]

_CONFIG = """\
# yaml-language-server: $schema=schema.json
# The streamsft demo: three generated corpora in three formats, a tokenizer trained on them, a tiny Llama.
seed: 7
sequence_length: 256                 # slots per pack, in tokens
tokenizer: ${CONFIG_DIR}/tokenizer   # ${CONFIG_DIR} is the folder of this file
mix:
  sources:                           # weights: relative frequency of draws, in samples
    arithmetic: {path: "${CONFIG_DIR}/data/arithmetic.jsonl", weight: 2}
    units: {path: "${CONFIG_DIR}/data/units.json", weight: 1}
    strings: {path: "${CONFIG_DIR}/data/strings.jsonl.gz", format: messages, weight: 1}
cache: {dir: "${CONFIG_DIR}/cache"}
packing: {lookahead: 1024, overflow: truncate}
loader: {global_batch_size: 8, micro_batch_size: 4}   # in packs
metrics: {log_every: 25, sinks: []}
train:
  steps: 150
  save_every: 50
  run_dir: ${CONFIG_DIR}/run
  model: tiny
  lr: 2.0e-3
  warmup: 10
  audit: true
"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFiles:
    """Where a demo's parts lie."""

    folder: Path
    config: Path
    corpora: dict[str, Path]
    tokenizer: Path

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"


def write_demo(folder: str | Path, *, rows: int = ROWS) -> DemoFiles:
    """Write the demo into `folder`: corpora, tokenizer, config and its schema. An earlier demo there is kept as it is.

    Raises:
        ConfigError: `folder` holds something else.
    """
    folder = Path(folder)
    files = DemoFiles(
        folder=folder,
        config=folder / "config.yaml",
        corpora={name: folder / "data" / file for name, file in _CORPORA.items()},
        tokenizer=folder / "tokenizer",
    )
    if files.config.is_file() and files.config.read_text(encoding="utf-8").startswith(_CONFIG.split("seed", 1)[0]):
        return files
    strangers = [] if not folder.exists() else _strangers(folder)
    if strangers:
        raise ConfigError(f"{folder}: {strangers[0]} is here, which is no part of a demo; name another folder for it")
    from streamsft.config import schema

    corpora = write_corpora(folder / "data", rows=rows)
    train_tokenizer(map(_text, corpora.values()), files.tokenizer)
    (folder / "schema.json").write_text(json.dumps(schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    files.config.write_text(_CONFIG, encoding="utf-8")  # last: its presence says that the demo is whole
    return files


def _strangers(folder: Path) -> list[str]:
    if not folder.is_dir():
        return ["a file of that name"]
    return sorted({path.name for path in folder.iterdir()} - {"data", "tokenizer", "schema.json"})


_CORPORA = {"arithmetic": "arithmetic.jsonl", "units": "units.json", "strings": "strings.jsonl.gz"}


def _text(file: Path) -> str:
    raw = file.read_bytes()
    return (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode()
