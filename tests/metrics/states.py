"""Helpers for the laws of reducers: states of values fed in one go, or split and merged in any order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from streamsft.metrics.reducers import Reducer
from streamsft.types import Floats, Ints

GROUPS = 3
State = tuple[Ints, Floats]


def one_pass(reducer: Reducer, group: Sequence[int], values: Sequence[float]) -> State:
    """All values in one update."""
    state = reducer.zero(GROUPS)
    reducer.update(*state, np.array(group, np.int64), np.array(values, np.float64))
    return state


def split_and_merged(
    reducer: Reducer, group: Sequence[int], values: Sequence[float], draw: st.DataObject
) -> list[dict[str, float]]:
    """The values shuffled, cut into updates of several states, which are merged two by two in any order."""
    order = draw.draw(st.permutations(range(len(values))))
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(values)), max_size=6)))
    states = [reducer.zero(GROUPS) for _ in range(draw.draw(st.integers(1, 4)))]
    for start, stop in zip([0, *cuts], [*cuts, len(values)], strict=True):
        part = order[start:stop]
        state = states[draw.draw(st.integers(0, len(states) - 1))]
        reducer.update(
            *state, np.array([group[i] for i in part], np.int64), np.array([values[i] for i in part], np.float64)
        )
    while len(states) > 1:
        other = states.pop(draw.draw(st.integers(0, len(states) - 1)))
        reducer.merge(*states[draw.draw(st.integers(0, len(states) - 1))], *other)
    return results(reducer, states[0])


def results(reducer: Reducer, state: State) -> list[dict[str, float]]:
    """The numbers of each group."""
    return [reducer.result(state[0][g], state[1][g]) for g in range(GROUPS)]


def per_group(group: Sequence[int], values: Sequence[float]) -> list[list[float]]:
    """The values of each group, in order."""
    return [[v for g, v in zip(group, values, strict=True) if g == k] for k in range(GROUPS)]
