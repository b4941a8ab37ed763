"""The kinds of values in a config: paths with variables in them, numbers in a range, weights by step."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

__all__ = [
    "FolderText",
    "HoldOut",
    "Natural",
    "NonNegative",
    "PathText",
    "Paths",
    "Positive",
    "Size",
    "Stretch",
    "TextOrList",
    "TrainOn",
    "Weight",
    "config_folder",
]

_config_dir: ContextVar[str] = ContextVar("config_dir", default=".")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def _expand(value: object) -> object:
    """Replace ``${NAME}`` and ``${NAME:-default}``; ``${CONFIG_DIR}`` is the folder of the config file."""
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        found = _config_dir.get() if name == "CONFIG_DIR" else os.environ.get(name) or default
        if found is None:
            raise ValueError(f"the environment variable {name} is not set: set it, or write ${{{name}:-default}}")
        return found

    return os.path.expanduser(_VARIABLE.sub(replace, value))


@contextmanager
def config_folder(folder: str) -> Iterator[None]:
    """While the block runs, ``${CONFIG_DIR}`` stands for `folder`."""
    token = _config_dir.set(folder)
    try:
        yield
    finally:
        _config_dir.reset(token)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _on_disk(value: str) -> str:
    if "://" in value:
        raise ValueError(f"{value!r} is an address; name a folder, at which any file system may be mounted")
    return value


PathText = Annotated[str, BeforeValidator(_expand), Field(min_length=1)]
"""A path (or an address); ``${VAR}`` and ``~`` are expanded. A relative one starts at the working directory."""
FolderText = Annotated[PathText, AfterValidator(_on_disk)]
"""A `PathText` of a folder that is written to."""
_TEXT_OR_LIST: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
TextOrList = Annotated[list[str], BeforeValidator(_as_list), WithJsonSchema(_TEXT_OR_LIST)]
Paths = Annotated[list[PathText], BeforeValidator(_as_list), Field(min_length=1), WithJsonSchema(_TEXT_OR_LIST)]
Positive = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
_SCHEDULE: dict[str, Any] = {
    "type": "object",
    "patternProperties": {"^(0|[1-9][0-9]*)$": {"type": "number", "minimum": 0}},
    "properties": {"hold": {"type": "boolean"}},
    "additionalProperties": False,
}
Weight = Annotated[
    Annotated[NonNegative, Tag("<number>")]
    | Annotated[dict[str, float | bool], WithJsonSchema(_SCHEDULE), Tag("<schedule>")],
    Discriminator(lambda value: "<schedule>" if isinstance(value, Mapping) else "<number>"),
]
"""A number, or numbers by training step; `config_weights` has seen to what a schedule holds."""


def _holding(value: object) -> object:
    if value == 0 and not isinstance(value, bool):
        raise ValueError(
            "0 holds nothing out; give a fraction of the rows such as 0.02, or a number of them, or leave the key out"
        )
    return value


HoldOut = Annotated[
    Annotated[Fraction, Tag("<fraction>")] | Annotated[Positive, Tag("<rows>")],
    Discriminator(lambda value: "<fraction>" if isinstance(value, float) else "<rows>"),
    BeforeValidator(_holding),
]
_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)")
_UNITS = {
    "B": 1,
    **{f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)},
    **{f"{p}B": 1000**n for n, p in enumerate("KMGT", 1)},
}


def _as_bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is no size; write bytes as 32GiB, 512MiB or a whole number")
    return int(match.group(1)) * _UNITS[match.group(2)]


Size = Annotated[
    int,
    BeforeValidator(_as_bytes),
    Field(ge=0),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": f"^{_SIZE.pattern}$"}]}),
]
"""Bytes: a whole number, or a text such as 32GiB."""
Stretch = Annotated[list[Positive], Field(min_length=2, max_length=2)]
TrainOn = Literal["assistant", "last_assistant", "everything"]
