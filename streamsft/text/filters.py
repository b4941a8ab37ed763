"""A user's filters: which rows to leave out, and by which name they are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from streamsft.errors import ConfigError, DataError, StreamsftError
from streamsft.text.conversation import REASONS
from streamsft.text.holdout import HELD_OUT
from streamsft.text.jobs import TRANSFORM_REASON
from streamsft.types import check_name

__all__ = ["Filters", "apply_filters", "named_filters"]

Filters: TypeAlias = "Mapping[str, Callable[[Any], Any]] | Sequence[Callable[[Any], Any]]"

_TAKEN = {*REASONS, HELD_OUT, TRANSFORM_REASON, "messages", "too_long", "other"}  # what reasons unforeseen count as


def named_filters(filters: Filters, what: str) -> dict[str, Callable[[Any], Any]]:
    """The filters by name: the key of a mapping, or else the function's own name.

    Raises:
        ConfigError: one is no function, or has the name of another one or of another reason.
    """
    if not isinstance(filters, Mapping | Sequence) or isinstance(filters, str):
        raise ConfigError(f"{what}: a {type(filters).__name__} is no list of functions and no mapping of them by name")
    if not isinstance(filters, Mapping):
        given = list(filters)
        names = [_name(function, f"{what}_{number}") for number, function in enumerate(given)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"{what}: two are named {min(twice)!r}; name them: {{'short': function, ...}}")
        filters = dict(zip(names, given, strict=True))
    for name, function in filters.items():
        check_name(name, what)
        if name in _TAKEN:
            raise ConfigError(f"{what}: {name!r} is another reason to leave rows out; give it another name")
        if not callable(function):
            raise ConfigError(f"{what}: {name!r} is a {type(function).__name__}, not a function")
    return dict(filters)


def apply_filters(filters: Mapping[str, Callable[[Any], Any]], value: Any, where: Callable[[], str]) -> str | None:
    """The name of the first filter that leaves `value` out, None if all keep it.

    Raises:
        DataError: a filter failed.
    """
    for name, keep in filters.items():
        try:
            if not keep(value):
                return name
        except StreamsftError as error:
            raise type(error)(f"{where()}: filter {name}: {error}") from error
        except Exception as error:
            raise DataError(f"{where()}: the filter {name} raised {type(error).__name__}: {error}") from error
    return None


def _name(function: Any, otherwise: str) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return name if str(name).isidentifier() else otherwise
