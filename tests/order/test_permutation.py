"""`permute` is a bijection for every size, looks random, treats elements alone, and never changes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError
from streamsft.order import permutation
from streamsft.order.keys import derive_key, hash64, shuffled
from streamsft.order.permutation import permute
from streamsft.types import Ints
from tests.order.chi_square import z_score

POWERS = [2**k + d for k in range(1, 18) for d in (-1, 0, 1)]
PRIMES = [2, 3, 5, 31, 37, 61, 67, 4093, 4099, 10_007, 65_537, 99_991, 131_071]
# Above the table: just above it, squares, just above squares, Fermat's prime, powers of two and around.
LARGE = [4097, 4225, 4226, 16_384, 16_385, 65_536, 65_537, 1_000_003, 2**20, 2**24 + 1, 123_456_789]
KEYS = [derive_key(seed, "test") for seed in range(5)]
Permutation = Callable[[Ints, int, int], Ints]


def first(n: int, key: int, limit: int = 200_000) -> Ints:
    return permute(np.arange(min(n, limit)), n, key)


@pytest.mark.parametrize("n", sorted({1, *POWERS, *PRIMES}))
def test_every_size_is_a_bijection(n: int) -> None:
    for key in (0, 1, 2**64 - 1, derive_key(n)):
        assert np.array_equal(np.sort(first(n, key)), np.arange(n))


@settings(max_examples=40)
@given(n=st.integers(1, 30_000), key=st.integers(0, 2**64 - 1))
def test_any_size_and_key_is_a_bijection(n: int, key: int) -> None:
    assert np.array_equal(np.sort(first(n, key)), np.arange(n))


@pytest.mark.parametrize("n", [2**32 - 1, 2**40 + 1, 10**15, 2**53 + 1, 2**62 - 1, 2**62])
def test_huge_sizes_stay_in_range_and_never_collide(n: int) -> None:
    spread = np.linspace(0, n - 1, 1000).astype(np.int64).clip(0, n - 1)
    positions = np.unique(np.concatenate([spread, np.arange(50_000), n - 1 - np.arange(50_000)]))
    out = permute(positions, n, derive_key(n))
    assert out.min() >= 0
    assert out.max() < n
    assert len(np.unique(out)) == len(positions)


@given(n=st.integers(4097, 2**62))
def test_the_two_radices_are_the_smallest_that_hold_the_size(n: int) -> None:
    left, right = (int(radix[0]) for radix in permutation._radices(np.array([n])))
    assert left == math.isqrt(n - 1) + 1
    assert right == -(-n // left)


@settings(max_examples=30)
@given(
    elements=st.lists(
        st.tuples(st.sampled_from([1, 2, 31, 32, 33, 100, 4096, 4097, 70_000, 2**40]), st.integers(0, 4)),
        min_size=1,
        max_size=60,
    ),
    draw=st.data(),
)
def test_one_call_over_many_sources_and_passes_equals_single_calls(
    elements: list[tuple[int, int]], draw: st.DataObject
) -> None:
    sizes = np.array([size for size, _ in elements])
    keys = hash64(1, np.array([key for _, key in elements]))
    positions = np.array([draw.draw(st.integers(0, size - 1)) for size, _ in elements])
    together = permute(positions, sizes, keys)
    singly = [int(permute(positions[i : i + 1], int(sizes[i]), int(keys[i]))[0]) for i in range(len(elements))]
    assert together.tolist() == singly


def test_small_sizes_are_the_sort_of_hashes_whichever_way_they_are_made() -> None:
    for n in (1, 2, 5, 32, 33, 500, 4096):
        assert np.array_equal(first(n, 11), shuffled(11, n))


def test_no_elements_give_no_elements() -> None:
    empty = np.empty(0, np.int64)
    assert permute(empty, empty, empty.astype(np.uint64)).tolist() == []


@pytest.mark.parametrize(("index", "size"), [(-1, 5), (5, 5), (0, 0), (0, -3), (0, 2**62 + 1)])
def test_out_of_range_is_refused_with_both_numbers(index: int, size: int) -> None:
    with pytest.raises(ConfigError, match=rf"index {index} with size {size}"):
        permute(np.array([0, index]), np.array([1, size]), 0)


def test_golden_values_never_change() -> None:
    # A change here changes the order of every run that anyone has started: never update these values.
    golden = {
        10: [7, 0, 5, 3, 2, 4],
        1000: [12, 451, 262, 187, 88, 86],
        4096: [2457, 1844, 1725, 3968, 2641, 1773],
        4097: [1484, 523, 2304, 1098, 831, 2393],
        65537: [36273, 40302, 43473, 54882, 55794, 270],
        1099511627776: [702379661911, 243476248327, 730795826878, 26460524688, 474920971054, 51592410579],
    }
    assert {n: permute(np.arange(6), n, 12345).tolist() for n in golden} == golden


# Randomness -----------------------------------------------------------------------------------------------------


def lag_one_differences(out: Ints, n: int) -> float:
    return z_score(np.bincount(np.diff(out) % n * 64 // n, minlength=64))


def position_against_value(out: Ints, n: int) -> float:
    cells = np.arange(len(out)) * 16 // len(out) * 16 + out * 16 // n
    return z_score(np.bincount(cells, minlength=256))


def residues_of_the_first(out: Ints, n: int) -> float:
    head = out[:1024]
    return max(z_score(np.bincount(head % m, minlength=m)) for m in (2, 3, 4, 5, 7, 8, 16, 32))


MEASURES = [lag_one_differences, position_against_value, residues_of_the_first]


@pytest.mark.parametrize("n", LARGE)
@pytest.mark.parametrize("measure", MEASURES)
def test_a_permutation_looks_random(n: int, measure: Callable[[Ints, int], float]) -> None:
    scores = [measure(first(n, key), n) for key in KEYS]
    assert max(scores) < 4.5
    assert np.mean(scores) < 2.5


@pytest.mark.parametrize("measure", MEASURES)
def test_the_measures_find_an_order_that_is_not_random(measure: Callable[[Ints, int], float]) -> None:
    n = 65_536
    stride = np.arange(n) * 4 % n + np.arange(n) * 4 // n
    assert measure(stride, n) > 20


@pytest.mark.parametrize("n", LARGE)
def test_the_first_outputs_have_both_parities(n: int) -> None:
    for key in KEYS:
        odd = int((first(n, key, 1024) % 2).sum())
        assert abs(odd - 512) < 80  # five standard deviations


@pytest.mark.parametrize("n", LARGE)
@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (7, 7 + 2**32), (KEYS[0], KEYS[1]), (3, 3 + 0xD1342543DE82EF95)])
def test_permutations_of_two_keys_are_independent(n: int, pair: tuple[int, int]) -> None:
    a, b = (first(n, key) for key in pair)
    assert z_score(np.bincount((a - b) % n * 64 // n, minlength=64)) < 5
    # Two random permutations agree in one place on average, whatever their size.
    assert int((a == b).sum()) < 10


@pytest.mark.parametrize("n", [4097, 65_537])
def test_every_row_is_first_equally_often_over_keys(n: int) -> None:
    firsts = permute(np.zeros(50_000, np.int64), n, hash64(3, np.arange(50_000)))
    assert z_score(np.bincount(firsts * 128 // n, minlength=128)) < 5


@pytest.mark.parametrize("n", [2, 3, 5, 24, 40])
def test_tiny_sizes_put_each_row_everywhere_equally_often(n: int) -> None:
    passes = 20_000
    out = permute(np.tile(np.arange(n), passes), n, np.repeat(hash64(4, np.arange(passes)), n)).reshape(passes, n)
    for position in (0, n - 1):
        assert abs(z_score(np.bincount(out[:, position], minlength=n))) < 4.5
