"""Keys are unambiguous, hashes are spread evenly, and neither ever changes."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streamsft.errors import ConfigError
from streamsft.order.keys import as_keys, derive_key, hash64, shuffled
from tests.order.chi_square import z_score

U64 = st.integers(0, 2**64 - 1)


def test_golden_values_never_change() -> None:
    # A change here changes the order of every run that anyone has started: never update these values.
    assert derive_key(0) == 0x8AE5DCCBD53130EE
    assert derive_key(7, "rows", "gsm8k") == 0xB4353B0E1D36FE34
    assert derive_key(-1, "π", 2**70) == 0x6283AF6ED953827F
    assert hash64(0, np.arange(3)).tolist() == [9832733656851652127, 4592749745069437737, 12140361471888300608]
    assert hash64(2**64 - 1, np.array([2**63], np.uint64)).tolist() == [8281782516245842002]
    assert shuffled(7, 10).tolist() == [6, 1, 7, 2, 0, 3, 4, 5, 8, 9]


def test_lists_of_parts_that_look_alike_have_different_keys() -> None:
    alike = [("ab", "c"), ("a", "bc"), ("a", "b", "c"), ("abc",), ("", "abc"), ("abc", ""), (1,), ("1",), (1, 1), (11,)]
    seeds = (0, 1, -1, 255, 256, 2**64, 2**64 + 1)
    assert len({derive_key(seed, *parts) for seed in seeds for parts in alike}) == len(seeds) * len(alike)


def test_a_negative_integer_differs_from_its_unsigned_twin() -> None:
    assert derive_key(0, -1) != derive_key(0, 255)
    assert derive_key(0, -(2**63)) != derive_key(0, 2**63)


def test_numpy_integers_make_the_same_key_as_python_ones() -> None:
    assert derive_key(3, np.int64(5), np.uint8(6)) == derive_key(3, 5, 6)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [1.0, None, b"rows", ("rows",)])
def test_other_parts_are_refused_by_value_and_type(part: object) -> None:
    with pytest.raises(ConfigError, match=type(part).__name__):
        derive_key(0, part)  # type: ignore[arg-type]


@given(key=U64, counters=st.lists(U64, unique=True, max_size=20))
def test_distinct_counters_never_collide(key: int, counters: list[int]) -> None:
    assert len(set(hash64(key, np.array(counters, np.uint64)).tolist())) == len(counters)


@given(keys=st.lists(U64, min_size=1, max_size=8), counter=U64)
def test_one_call_for_many_keys_equals_many_calls(keys: list[int], counter: int) -> None:
    counters = np.array([counter], np.uint64)
    together = hash64(np.array(keys, np.uint64), counters)
    assert together.tolist() == [int(hash64(key, counters)[0]) for key in keys]


def test_keys_and_counters_broadcast_against_each_other() -> None:
    table = hash64(np.arange(3, dtype=np.uint64)[:, None], np.arange(5))
    assert table.shape == (3, 5)
    assert table[2, 4] == hash64(2, np.array([4]))[0]


def test_integers_are_taken_modulo_two_to_the_64() -> None:
    assert hash64(-1, np.array([-1]))[0] == hash64(2**64 - 1, np.array([2**64 - 1], np.uint64))[0]
    assert as_keys(2**64 + 5) == 5


def test_foreign_byte_order_changes_nothing() -> None:
    native, swapped = np.arange(100, dtype="=u8"), np.arange(100).astype(">u8")
    assert np.array_equal(hash64(3, native), hash64(3, swapped))
    assert np.array_equal(hash64(native, native), hash64(swapped, swapped))


@pytest.mark.parametrize("shift", range(0, 64, 8))
def test_every_byte_of_a_hash_is_uniform(shift: int) -> None:
    hashes = hash64(derive_key(1, "bytes"), np.arange(100_000))
    counts = np.bincount((hashes >> np.uint64(shift) & np.uint64(255)).astype(np.int64), minlength=256)
    assert abs(z_score(counts)) < 5


@pytest.mark.parametrize("gap", [1, 2, 0x9E3779B97F4A7C15, 0xB504F333F9DE6485])
def test_keys_close_to_each_other_give_independent_hashes(gap: int) -> None:
    counters = np.arange(50_000)
    difference = hash64(5, counters) ^ hash64(5 + gap, counters)
    assert abs(z_score(np.bincount((difference >> np.uint64(56)).astype(np.int64), minlength=256))) < 5
    # Nor is one stream the other one, shifted by a few counters.
    assert not np.isin(hash64(5, counters), hash64(5 + gap, counters)).any()


def test_one_flipped_counter_bit_flips_half_of_the_bits() -> None:
    counters = np.arange(2_000, dtype=np.uint64)
    for bit in range(64):
        flipped = hash64(9, counters) ^ hash64(9, counters ^ np.uint64(1 << bit))
        assert abs(np.unpackbits(flipped.view(np.uint8)).mean() - 0.5) < 0.01


@given(key=U64, n=st.integers(0, 300))
def test_shuffled_holds_every_number_once(key: int, n: int) -> None:
    order = shuffled(key, n)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(n))


def test_another_process_with_another_hash_seed_makes_the_same_values() -> None:
    code = (
        "import numpy as np; from streamsft.order.keys import *; from streamsft.order.permutation import permute;"
        "print(derive_key(1, 'a', 2), hash64(3, np.arange(3)).tolist(), shuffled(4, 5).tolist(),"
        " permute(np.arange(9), np.array([20, 500, 5000] * 3), hash64(5, np.arange(9))).tolist())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "12345")
    }
    assert len(outputs) == 1
