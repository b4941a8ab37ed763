"""What ``--json`` prints of each command's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from streamsft.build_sources import drawn_sources
from streamsft.commands.preview import Survey
from streamsft.config import Config
from streamsft.engine import Done
from streamsft.sources.store import TokenStore
from streamsft.text.rejections import REJECTED_FILE
from streamsft.text.summary import SourceSummary
from streamsft.training.settings import TrainResult

__all__ = ["preview_view", "row_view", "stores_view", "train_view", "validate_view"]


def validate_view(config: Config) -> dict[str, Any]:
    """A config that is valid, and what it draws from."""
    sources = {
        name: {key: value for key in ("path", "store", "hub") if (value := getattr(source, key)) is not None}
        for name, source in drawn_sources(config).items()
    }
    return {"sources": sources, "config": config.model_dump(mode="json")}


def stores_view(stores: Mapping[str, TokenStore], done: Mapping[str, Done]) -> dict[str, Any]:
    """Tokenized sources, by name, with what of each was not tokenized by this call."""
    return {"sources": {name: _store(store, done.get(name, Done())) for name, store in stores.items()}}


def _store(store: TokenStore, done: Done) -> dict[str, Any]:
    summary = asdict(SourceSummary.of(store))
    del summary["name"]
    rejected = None if store.path is None else Path(store.path) / REJECTED_FILE
    return {
        **summary,
        "supervised": store.manifest.supervised,
        "fingerprint": store.fingerprint,
        "path": store.path,
        "rejected_file": rejected if rejected is not None and rejected.exists() else None,
        "not_tokenized_again": asdict(done),
    }


def preview_view(survey: Survey) -> dict[str, Any]:
    """What the first packs of a mix hold."""
    return {
        "samples": dict(survey.samples),
        "tokens": dict(survey.tokens),
        "packs": survey.packs,
        "slots": survey.slots,
        "packing_efficiency": survey.efficiency,
    }


def row_view(row: str, reason: str | None) -> dict[str, Any]:
    """Whether a row is used."""
    return {"row": row, "rejected": reason}


def train_view(result: TrainResult) -> dict[str, Any]:
    """How a call of `train` ended."""
    stopped = {"error": result.message} if result.exit_code else {}
    return {**asdict(result), "nothing_to_do": result.nothing_to_do, "message": result.message, **stopped}
