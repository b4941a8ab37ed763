"""Permutations of [0, n) that need no memory of size n: where a pass stands is one number.

`permute` is elementwise: every element names its own permutation by (size, key), so that one call
serves all sources and passes of a window.

Sizes up to 4096 use the argsort of keyed hashes. Larger ones use a keyed Feistel network in mixed
radix: with a = ⌈√n⌉ and b = ⌈n/a⌉ a number is a pair (left < a, right < b), and rounds add a keyed hash
of one half to the other, modulo its radix. That is a bijection of [0, a·b); since a·b - n < a, a number
that leaves [0, n) is sent through again ("cycle walking"), which fewer than one in √n needs. A power-of-four
domain would be walked up to four times over, and would need that again for most numbers just above 4**k.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import ConfigError
from streamsft.order.keys import Keys, as_keys, hash64, shuffled
from streamsft.types import Ints

__all__ = ["LARGEST_TABLE", "permute"]

ROUNDS: Final = 8
LARGEST_TABLE: Final = 4096
"""Sizes up to this are shuffled by argsort, which is exactly uniform."""

_FEW: Final = 16  # tables up to this many are sorted one by one and kept; more are sorted together
_SORTED: Final = 1 << 18  # numbers sorted at a time
_NARROW: Final = 32  # sizes up to this are not told apart then, larger ones by powers of two
_LARGEST: Final = 2**62  # keeps both radices within 32 bits, which the multiply-shift below needs

_STEP: Final = np.uint64(0xD1342543DE82EF95)  # odd constants that keep halves and rounds apart
_SPREAD: Final = np.uint64(0xF1357AEA2E62A9C5)
_HALF: Final = np.uint64(32)


def permute(index: Ints | int, size: Ints | int, key: Keys | int) -> Ints:
    """Return where each `index` stands in the permutation of [0, `size`) that `key` names.

    For any one size and key this is a bijection of [0, size). Its cost per element is the same for all
    sizes; a size up to 4096 additionally costs one sort of that size for each key.

    Args:
        index: positions, int64[k], each in [0, size).
        size: length of each permutation, int64[k], or one for all; 1 … 2**62.
        key: 64-bit keys, uint64[k], or one for all. Take ``hash64(derive_key(seed, "rows", name), passes)``
            for the passes of a source.

    Returns:
        int64[k], a pure function of the arguments on every machine.

    Raises:
        ConfigError: a size or an index is out of its range.
    """
    positions, sizes, keys = np.broadcast_arrays(np.atleast_1d(index), np.asarray(size, np.int64), as_keys(key))
    _check(positions, sizes)
    by_table = sizes <= LARGEST_TABLE
    if not by_table.any():
        return _feistel(positions, sizes, keys)
    out = np.empty(positions.shape, np.int64)
    for chosen, method in ((by_table, _by_tables), (~by_table, _feistel)):
        at = np.flatnonzero(chosen)
        if len(at):
            out[at] = method(positions[at], sizes[at], keys[at])
    return out


def _check(positions: Ints, sizes: Ints) -> None:
    bad = (positions < 0) | (positions >= sizes) | (sizes > _LARGEST)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise ConfigError(
            f"permute: index {positions[at]} with size {sizes[at]}: need 0 <= index < size and size <= 2**62"
        )


def _by_tables(positions: Ints, sizes: Ints, keys: Keys) -> Ints:
    """`permute` for sizes up to LARGEST_TABLE."""
    out = np.empty(len(positions), np.int64)
    order, starts = _groups(sizes, keys)
    if len(starts) <= _FEW:
        for at in np.split(order, starts[1:]):
            out[at] = _table(int(sizes[at[0]]), int(keys[at[0]]))[positions[at]]
        return out
    group = np.empty(len(order), np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
    group_sizes, group_keys = sizes[order[starts]], keys[order[starts]]
    slots = np.maximum(_NARROW, np.exp2(np.ceil(np.log2(group_sizes)))).astype(np.int64)
    for width in np.unique(slots).tolist():
        alike = np.flatnonzero(slots == width)
        for first in range(0, len(alike), _SORTED // width):
            some = alike[first : first + _SORTED // width]
            table = np.full(len(starts), -1)
            table[some] = np.arange(len(some))
            at = np.flatnonzero(table[group] >= 0)
            out[at] = _sorted_together(group_sizes[some], group_keys[some])[table[group[at]], positions[at]]
    return out


def _sorted_together(sizes: Ints, keys: Keys) -> Ints:
    """The tables of these sizes and keys, one a row; what lies beyond a row's size is of no use."""
    columns = np.arange(sizes.max())
    hashes = hash64(keys[:, None], columns)
    # Columns beyond a row's size sort last: nothing is larger, and a stable sort leaves an equal one before them.
    hashes[columns >= sizes[:, None]] = np.iinfo(np.uint64).max
    return np.argsort(hashes, axis=1, kind="stable")


def _groups(sizes: Ints, keys: Keys) -> tuple[Ints, Ints]:
    """Return an order that brings equal (size, key) together, and where in it each group starts."""
    order = np.lexsort((sizes, keys))
    return order, _runs(sizes[order], keys[order])


def _runs(sizes: Ints, keys: Keys) -> Ints:
    """Where the first of neighbours with equal (size, key) stand."""
    same = np.zeros(len(keys), np.bool_)
    same[1:] = (keys[1:] == keys[:-1]) & (sizes[1:] == sizes[:-1])
    return np.flatnonzero(~same)


@lru_cache(maxsize=1024)  # at most 8 MB
def _table(size: int, key: int) -> NDArray[np.uint16]:
    return shuffled(key, size).astype(np.uint16)


def _feistel(positions: Ints, sizes: Ints, keys: Keys) -> Ints:
    """`permute` for any size, without memory."""
    limit = sizes.astype(np.uint64)
    # What is the same for neighbours is found once for all of them: the rows of a window are those of few passes.
    starts = _runs(sizes, keys)
    counts = np.diff(starts, append=len(keys))
    left_radix, right_radix = (radix.repeat(counts) for radix in _radices(sizes[starts]))
    # Hashed once, so that keys which are close to each other, or to each other's multiples, are unrelated inside.
    inner = hash64(keys[starts], np.zeros(1, np.uint64)).repeat(counts)
    out = _rounds(positions.astype(np.uint64), left_radix, right_radix, inner)
    outside = np.flatnonzero(out >= limit)
    while len(outside):
        out[outside] = _rounds(out[outside], left_radix[outside], right_radix[outside], inner[outside])
        outside = outside[out[outside] >= limit[outside]]
    return out.astype(np.int64)


def _radices(sizes: Ints) -> tuple[Keys, Keys]:
    """Return a = ⌈√n⌉ and b = ⌈n/a⌉; the float root is put right by integers, as it is off by one for large n."""
    root = np.sqrt(sizes.astype(np.float64)).astype(np.int64)
    root -= root * root >= sizes
    root += root * root < sizes
    return root.astype(np.uint64), (-(-sizes // root)).astype(np.uint64)


def _rounds(x: Keys, left_radix: Keys, right_radix: Keys, key: Keys) -> Keys:
    left, right = np.divmod(x, right_radix)
    state: Any = key
    for _ in range(ROUNDS // 2):
        left = _add(left, _hashed(right, state, left_radix), left_radix)
        state = state + _STEP
        right = _add(right, _hashed(left, state, right_radix), right_radix)
        state = state + _STEP
    return left * right_radix + right


def _hashed(half: Keys, key: Keys, radix: Keys) -> Keys:
    """A keyed hash of `half` in [0, radix).

    Two multiply-xorshift rounds as in `mix64`, of which the upper 32 bits are scaled by multiply-shift, without a
    division. In place, for this is where planning spends its time.
    """
    x = half * _SPREAD
    x += key
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x >>= _HALF
    x *= radix
    x >>= _HALF
    return x


def _add(half: Keys, amount: Keys, radix: Keys) -> Keys:
    """`half` + `amount` modulo `radix`; both are below it."""
    amount += half
    below: Keys = np.minimum(amount, amount - radix)  # below zero, an unsigned number is the larger of the two
    return below
