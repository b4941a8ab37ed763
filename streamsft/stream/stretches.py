"""Stretches of steps that are left out."""

from __future__ import annotations

from collections.abc import Sequence

from streamsft.errors import ConfigError

__all__ = ["checked_stretches"]


def checked_stretches(stretches: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Stretches of steps, first and last each.

    Raises:
        ConfigError: one is no pair of steps >= 1 in ascending order.
    """
    checked = []
    for stretch in stretches:
        if not isinstance(stretch, list | tuple):
            raise ConfigError(f"skip_steps: {stretch!r} is not a first and a last step, such as [120, 140]")
        if len(stretch) != 2 or not all(type(step) is int for step in stretch) or not 1 <= stretch[0] <= stretch[1]:
            raise ConfigError(f"skip_steps: {list(stretch)} is not a first and a last step, such as [120, 140]")
        checked.append((stretch[0], stretch[1]))
    return tuple(checked)
