"""What a user's function is, as far as its output goes: by its declared version or by its source text."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

from streamsft.errors import ConfigError

__all__ = ["identity"]


def identity(function: Any, what: str) -> str:
    """A digest, 32 hexadecimal digits, that changes when the function does.

    A `version` attribute (text or a number) decides alone. Without one, the digest covers the source
    text, defaults, the values it closes over, and the functions and constants of its own module that it
    mentions, and theirs; a `functools.partial` its function and arguments; an object its class and its
    attributes; a method both. What a function reads elsewhere (files, other modules) is not seen:
    declare a `version` then.

    Args:
        function: the callable.
        what: how to call it in messages.

    Raises:
        ConfigError: there is no source text, or a value whose content cannot be told.
    """
    parts = list(_parts(function, what, {}))
    return hashlib.blake2b(json.dumps(parts).encode("utf-8"), digest_size=16).hexdigest()


def _parts(thing: Any, what: str, seen: dict[int, Any]) -> Iterator[Any]:
    """Everything that `thing` is made of, as JSON."""
    if id(thing) in seen:
        yield ["again"]
        return
    version = getattr(thing, "version", None)
    if callable(thing) and isinstance(version, str | int | float):
        yield ["version", _name(thing), version]
    elif isinstance(thing, functools.partial):
        seen[id(thing)] = thing  # kept, so that no other object gets its id
        for part in (thing.func, list(thing.args), dict(thing.keywords)):
            yield from _parts(part, what, seen)
    elif isinstance(thing, types.MethodType):
        yield from _parts(thing.__func__, what, seen)
        yield from _parts(thing.__self__, what, seen)
    elif isinstance(thing, types.FunctionType):
        seen[id(thing)] = thing
        yield ["function", _source(thing, what)]
        yield from _function_values(thing, what, seen)
    elif isinstance(thing, types.BuiltinFunctionType | type):
        yield ["name", _name(thing)] if _is_foreign(thing) else ["class", _source(thing, what)]
    elif (text := _as_json(thing)) is not None:
        yield ["value", text]
    elif isinstance(thing, list | tuple | Mapping):
        seen[id(thing)] = thing
        items = [*map(list, thing.items())] if isinstance(thing, Mapping) else thing
        for item in items:
            yield from _parts(item, what, seen)
    elif isinstance(fingerprint := getattr(thing, "fingerprint", None), str):
        yield ["fingerprint", fingerprint]
    elif hasattr(thing, "__dict__") and not isinstance(thing, types.ModuleType):
        seen[id(thing)] = thing
        yield from _parts(type(thing), what, seen)
        yield from _parts(vars(thing), what, seen)
    elif isinstance(thing, types.ModuleType):
        yield ["module", thing.__name__]
    else:
        raise ConfigError(
            f"{what}: the content of a {type(thing).__name__} that it uses cannot be told; "
            "give the function a `version` attribute and change it with the output"
        )


def _function_values(function: types.FunctionType, what: str, seen: dict[int, Any]) -> Iterator[Any]:
    """Defaults, closed-over values, and what the function mentions of its own module."""
    yield from _parts(list(function.__defaults__ or ()), what, seen)
    yield from _parts(dict(function.__kwdefaults__ or {}), what, seen)
    yield from _parts(list(inspect.getclosurevars(function).nonlocals.items()), what, seen)
    for name in sorted(_mentioned(function.__code__)):
        value = function.__globals__.get(name)
        own = getattr(value, "__module__", None) == function.__module__
        if (isinstance(value, types.FunctionType | type) and own) or _as_json(value) not in (None, "null"):
            yield name
            yield from _parts(value, what, seen)


def _mentioned(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_mentioned, inner))


def _is_foreign(thing: Any) -> bool:
    """True for classes and functions without source text: built in, or compiled."""
    try:
        inspect.getsourcefile(thing)
    except TypeError:
        return True
    return False


def _as_json(value: Any) -> str | None:
    if isinstance(value, re.Pattern):
        value = ["pattern", str(value.pattern), value.flags]
    elif isinstance(value, set | frozenset):
        value = ["set", *sorted(map(repr, value))]
    elif isinstance(value, bytes):
        value = ["bytes", value.hex()]
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return None


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def _source(thing: Any, what: str) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError) as error:
        raise ConfigError(
            f"{what}: the source text of {_name(thing)} cannot be found, so a change to it would go unseen; "
            "give it a `version` attribute, or define it in a file"
        ) from error
