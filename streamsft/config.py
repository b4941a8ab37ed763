"""Read and check a config. Nothing is built, and no data is touched.

Every key is known, and every error of a file is told at once, with its line, its path and a suggestion.
`load_config` reads a file; `schema` is the JSON schema that editors use. The keys are in `config_models`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from streamsft.config_errors import config_error, describe
from streamsft.config_models import (
    SECTIONS,
    CacheConfig,
    Config,
    EvalConfig,
    EvalSetConfig,
    GroupConfig,
    LoaderConfig,
    MetricsConfig,
    MixConfig,
    PackingConfig,
    SourceConfig,
    TextConfig,
    TrainConfig,
)
from streamsft.config_rules import check_rules
from streamsft.config_values import config_folder
from streamsft.config_yaml import Document, apply_overrides, read_yaml
from streamsft.errors import ConfigError

__all__ = [
    "CacheConfig",
    "Config",
    "ConfigLike",
    "EvalConfig",
    "EvalSetConfig",
    "GroupConfig",
    "LoaderConfig",
    "MetricsConfig",
    "MixConfig",
    "PackingConfig",
    "SourceConfig",
    "TextConfig",
    "TrainConfig",
    "load_config",
    "schema",
]


ConfigLike: TypeAlias = "str | Path | Mapping[str, Any] | Config"
"""What a config may be given as."""


def load_config(
    config: ConfigLike, overrides: Iterable[str] = (), *, without_tokenizer: Collection[str] = ()
) -> Config:
    """Read and check a config. ``${VAR}`` in paths is replaced from the environment; ``${CONFIG_DIR}`` is the folder
    of the file.

    Args:
        config: a YAML file, a mapping of the same shape, or a `Config`.
        overrides: ``key.path=value`` texts, laid over the config before it is checked.
        without_tokenizer: sources that a function of yours makes into tokens.

    Raises:
        ConfigError: anything is wrong; its message lists all of it.
    """
    overrides = list(overrides)
    if isinstance(config, Config):
        if not overrides:
            return config
        config = config.model_dump(exclude_unset=True)
    folder = "." if isinstance(config, Mapping) else str(Path(config).resolve().parent)
    document = _plain(config) if isinstance(config, Mapping) else read_yaml(config)
    apply_overrides(document, overrides)
    issues = [*document.issues, *check_rules(document.data, without_tokenizer)]
    with config_folder(folder):
        try:
            result = Config.model_validate(document.data)
        except ValidationError as error:
            sections = {section: list(model.model_fields) for section, model in SECTIONS.items()}
            issues += describe(error.errors(include_url=False), sections, document.data)
            raise config_error(document, issues) from None
    if issues:
        raise config_error(document, issues)
    return result


def _plain(config: Mapping[str, Any]) -> Document:
    """A copy of `config` as plain values, paths as text."""
    try:
        return Document(json.loads(json.dumps(dict(config), default=os.fspath)))
    except TypeError as error:
        raise ConfigError(f"config: numbers, text, lists and mappings only: {error}") from error


def schema() -> dict[str, Any]:
    """The JSON schema of a config file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2, ensure_ascii=False))
