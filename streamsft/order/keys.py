"""Keyed, counter-based hashes: the one origin of every random choice.

A choice is named by what it is for (`derive_key`) and by its number (`hash64`), never by how many
choices came before it. So any of them can be made again at any time, in any process, on any machine:
the arithmetic is integer arithmetic modulo 2**64 and knows neither the byte order nor the numpy version.
"""

from __future__ import annotations

import operator
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import ConfigError
from streamsft.types import Ints

__all__ = ["Keys", "derive_key", "hash64", "shuffled"]

Keys: TypeAlias = NDArray[np.uint64]

_MASK: Final = 2**64 - 1
# 2**64 divided by the golden ratio, odd: successive multiples are spread evenly over the 64-bit integers.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
# A second odd constant, so that the key enters both rounds differently: the square root of 2, in 64 bits.
_ROOT2: Final = np.uint64(0xB504F333F9DE6485)


def derive_key(seed: int, *parts: str | int) -> int:
    """Return the 64-bit key of a purpose, such as ``derive_key(seed, "rows", "gsm8k")``.

    The parts are encoded with their kind and length before they are hashed (blake2b), so that no two
    lists of parts share an encoding: ``("ab", "c")``, ``("a", "bc")`` and ``("a", "b", "c")`` have
    unrelated keys, and so do ``1`` and ``"1"``.

    Args:
        seed: any integer.
        parts: what the key is for: texts and integers (numpy's too), in a fixed order.

    Raises:
        ConfigError: a part is neither a text nor an integer.
    """
    digest = blake2b(digest_size=8)
    for part in (seed, *parts):
        if isinstance(part, str):
            kind, data = b"s", part.encode("utf-8", "surrogatepass")
        else:
            kind, data = b"i", _signed_bytes(part)
        digest.update(kind + len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")


def hash64(key: int | Keys, counters: Any) -> Keys:
    """Return keyed 64-bit hashes of `counters`, element by element.

    For one key it is a bijection of the 64-bit integers: distinct counters never collide.

    Args:
        key: one key, or uint64 keys that broadcast against `counters`.
        counters: integers of at least one dimension, taken modulo 2**64.

    Returns:
        uint64 in the broadcast shape, evenly spread over [0, 2**64).
    """
    keys = np.atleast_1d(as_keys(key))
    mixed = np.asarray(counters).astype(np.uint64) * _GOLDEN
    # The key enters twice. With one entry alone, keys a multiple of _GOLDEN apart would share one shifted stream.
    # Plus one, for `mix64` leaves 0 where it is and key 0 is a key like any other.
    return mix64(mix64(mixed + keys) ^ ((keys + np.uint64(1)) * _ROOT2))


def shuffled(key: int, n: int) -> Ints:
    """Return the numbers 0 … n - 1 in the order of `key`, int64[n].

    It is the stable argsort of keyed hashes, which needs O(n) memory; `permute` needs none.
    """
    return np.argsort(hash64(key, np.arange(n, dtype=np.uint64)), kind="stable").astype(np.int64, copy=False)


def as_keys(key: int | Keys) -> Keys:
    """Return `key` as uint64, integers taken modulo 2**64."""
    if isinstance(key, int):
        return np.asarray(key & _MASK, dtype=np.uint64)
    return np.asarray(key).astype(np.uint64, copy=False)


def mix64(x: Keys) -> Keys:
    """Return the 64-bit integers `x` mixed by a bijection in which every input bit moves every output bit.

    Two multiply-xorshift rounds with the constants of David Stafford's "variant 13", as in SplitMix64
    (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014). `x` has at least one dimension.
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _signed_bytes(part: Any) -> bytes:
    try:
        number = operator.index(part)
    except TypeError:
        raise ConfigError(f"key part {part!r} is a {type(part).__name__}: use texts and integers") from None
    return number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
