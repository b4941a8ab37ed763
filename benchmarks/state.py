"""How large a state is, and whether going on from it takes longer the later it was taken.

    python benchmarks/state.py [--json] [--quick]

Mixes of 1, 20 and 200 sources are planned to step 10 and to step 1,000,000. A state must have at most 64 bytes a source
plus 2 kB, as JSON, and the first batch after loading a late one must come as soon as after loading an early one.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median
from typing import Any

from measuring import arguments, report

import streamsft as ss
from streamsft.stream.lane import Lane

PACKS = 8
SEQUENCE_LENGTH = 64
EARLY = 10


def make_loader(sources: int, rows: int) -> ss.Loader:
    """A mix whose rows nearly fill a pack each, so that a million steps are soon planned."""
    row = {"input_ids": [7] * 60, "loss_mask": [1] * 60}
    stores = [ss.TokenStore.from_rows([row] * (rows // sources + n), name=f"source-{n}") for n in range(sources)]
    mix = ss.Interleave(stores, weights=[1.0 + n % 7 for n in range(sources)], seed=3)
    return ss.Loader(ss.Packer(mix, SEQUENCE_LENGTH), global_batch_size=PACKS, background=False)


def state_at(loader: ss.Loader, step: int) -> dict[str, Any]:
    """The state that the loader would have behind `step`; nothing is read for it."""
    lane = Lane(loader.packer.plan(), 0)
    for _ in range(step // EARLY):
        lane.take(EARLY * PACKS)
    state = loader.state_dict()
    return state | {"step": step, "lanes": {"0": lane.state.to_json()}}


def seconds_to_resume(sources: int, rows: int, state: dict[str, Any], tries: int) -> float:
    """Time from a fresh loader to its first batch behind `state`; the median of several tries."""
    times = []
    for _ in range(tries):
        loader = make_loader(sources, rows)
        start = time.perf_counter()
        loader.load_state_dict(state)
        batch = next(iter(loader))
        times.append(time.perf_counter() - start)
        assert batch.step == state["step"] + 1
    return median(times)


def main() -> int:
    """Measure, and print the figures."""
    options = arguments("Measure states and resuming.").parse_args()
    late, tries, rows = (500, 1, 500) if options.quick else (1_000_000, 9, 5_000)
    shown, over, ratios = [], [], []
    for sources in (1, 20, 200):
        early, later = (state_at(make_loader(sources, rows), step) for step in (EARLY, late))
        size = len(json.dumps(later))
        first, last = (seconds_to_resume(sources, rows, state, tries) for state in (early, later))
        over.append(size / (64 * sources + 2048))
        ratios.append(last / first)
        shown.append([str(sources), f"{size:,} B", f"{first * 1e3:.1f} ms", f"{last * 1e3:.1f} ms"])
    figures = {"state_of_allowed_size": max(over), "resume_late_vs_early": max(ratios)}
    report("States", ["sources", "size", f"step {EARLY}", f"step {late:,}"], shown, figures, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
