from itertools import pairwise

import pytest

from streamsft.training.schedule import learning_rate


def test_warms_up_linearly_and_falls_along_a_cosine() -> None:
    rates = [learning_rate(step, peak=1.0, warmup=4, steps=104) for step in range(1, 105)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[54] == pytest.approx(0.5)
    assert all(a > b for a, b in pairwise(rates[4:]))
    assert 0 < rates[-1] < 0.001


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_short_runs_and_long_warm_ups_have_a_rate(steps: int) -> None:
    for step in range(1, steps + 1):
        assert 0 < learning_rate(step, peak=1.0, warmup=2, steps=steps) <= 1.0
    assert learning_rate(1, peak=1.0, warmup=0, steps=1) == 1.0


def test_raised_steps_continue_on_the_longer_cosine() -> None:
    assert learning_rate(50, peak=1.0, warmup=0, steps=100) > learning_rate(50, peak=1.0, warmup=0, steps=50)
