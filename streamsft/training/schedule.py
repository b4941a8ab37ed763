"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

__all__ = ["learning_rate"]


def learning_rate(step: int, *, peak: float, warmup: int, steps: int) -> float:
    """Return the learning rate of step `step` (from 1) of `steps`: linear warm-up, then half a cosine.

    Step `warmup` and the one after it have the rate `peak`; the last step's is just above zero, so that no
    step is wasted. Nothing but the arguments enters, so a resumed run needs no scheduler state, and a run
    whose `steps` were raised goes on along the longer cosine.
    """
    if step <= warmup:
        return peak * step / warmup
    progress = (step - 1 - warmup) / max(1, steps - warmup)
    return peak * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
