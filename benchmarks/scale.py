"""What a run costs at 8, 64 and 1,024 data-parallel ranks of 4 workers, simulated in one process.

    python benchmarks/scale.py [--json] [--quick]

Nothing is read: sources have lengths that are worked out when they are asked for, so that they may have 10^11 rows.
What is measured is what one worker or rank does, with the library's own code: planning its part of the steps, putting
the states of all ranks together, and a log step. Shares of a core hold for a job that trains on 20 M tokens a second
over all ranks, 4 packs of 4,096 slots a rank and step. What processes fetch is counted by going through the order of a
store with a cache of the default size. The network's own time is not in it.
"""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from measuring import arguments, report
from samples import made_up
from scale_reads import MEMORY, reading, reading_rows, requests
from scaling import MEAN_LENGTH, SEQUENCE_LENGTH, SHUFFLE_GROUPS, EqualRanks, SpeakingRanks, make_plan

import streamsft as ss
from streamsft.comm import gather_json
from streamsft.stream.lanestate import LaneState
from streamsft.stream.state import STATE_VERSION, describe_plan, merged
from streamsft.stream.steps import Mixes, StepPlanner
from streamsft.stream.topology import Topology

TOKENS_PER_SECOND = 20e6  # of the whole job
PACKS = 4  # of a rank and step
WORKERS = 4
MANY = 1024
GROUP_ROWS = 2500  # rows of a row group: a million tokens
MOST_GROUPS = 4_000_000  # larger stores have larger groups
DOCUMENTS = 4000  # of a rank, from one log step to the next
LATE = 1_000_000  # steps behind a state


class Planning(NamedTuple):
    """What one worker spends."""

    milliseconds: float
    """Of each step of the job, its own or not."""
    share: float
    """Of a core, at `TOKENS_PER_SECOND`."""


def planning(sources: int, rows: int, ranks: int, lanes: tuple[int, int], steps: int, group_rows: int = 0) -> Planning:
    """Time that worker 1 of a rank in the middle takes to plan its part of so many steps.

    Args:
        sources: sources of the mix.
        rows: rows of all of them.
        ranks: data-parallel ranks.
        lanes: lanes_per_step and lane_groups.
        steps: steps of the job to go through, of which each worker makes one in four.
        group_rows: rows of a row group, to plan by row groups.
    """
    plan = make_plan(sources, rows, lanes[0] * lanes[1], group_rows)
    topology = Topology(
        global_batch_size=ranks * PACKS,
        dp=ss.Shard(ranks // 2, ranks),
        lanes_per_step=lanes[0],
        lane_groups=lanes[1],
    )
    planner = StepPlanner(Mixes(plan), topology, 0, {})
    tokens, begun = 0, time.process_time()
    for step in range(steps):
        if step % WORKERS == 1:
            tokens += int(planner.next().documents.length.sum())
            planner.announce()
        elif topology.lane_groups % WORKERS:
            planner.next()
        else:  # a step from other workers' lanes
            planner.skip()
    seconds = time.process_time() - begun
    return Planning(seconds / steps * 1e3, seconds / (tokens * ranks * WORKERS) * TOKENS_PER_SECOND)


class Saving(NamedTuple):
    """What a checkpoint of the stream takes."""

    state: int
    """Bytes of the whole state."""
    received: int
    """Bytes that each rank is sent."""
    seconds: float
    """Until a rank has the whole state, the network's time not included."""


def saving(sources: int, ranks: int, lanes: tuple[int, int]) -> Saving:
    """Put together the parts of all ranks, late in a run."""
    plan = make_plan(sources, 10**9, lanes[0] * lanes[1])
    head: dict[str, Any] = {"version": STATE_VERSION, "step": LATE}
    head["fingerprint"] = {**describe_plan(plan), "lanes": list(lanes), "tokenizer": "0123456789abcdef"}
    drawn = int(LATE * ranks * PACKS * SEQUENCE_LENGTH / MEAN_LENGTH) // plan.lanes
    parts: list[bytes] = []
    for rank in range(ranks):
        topology = Topology(
            global_batch_size=ranks * PACKS, dp=ss.Shard(rank, ranks), lanes_per_step=lanes[0], lane_groups=lanes[1]
        )
        if rank and plan.lanes == 1:
            parts.append(parts[0])
            continue
        owned = {str(lane): _late(LaneState.start(plan, lane), drawn) for lane in topology.owned}
        parts.append(json.dumps({**head, "lanes": owned}).encode())
    comm = SpeakingRanks(parts)
    begun = time.perf_counter()
    state = merged(gather_json(comm, json.loads(parts[0])), plan.lanes)
    seconds = time.perf_counter() - begun
    return Saving(len(json.dumps(state)), comm.bytes, seconds)


def _late(start: LaneState, drawn: int) -> list[Any]:
    sources = len(start.due)
    late = LaneState(window=drawn // 1024, due=start.due, drawn=(drawn // sources,) * sources, emitted=17)
    return late.to_json()


class Logging(NamedTuple):
    """What a log step takes on each rank."""

    collectives: int
    received: int
    """Bytes that it is sent."""
    seconds: float
    memory: int
    """Peak of what it allocates beside what there is, the network's buffer included, in bytes."""


def logging(sources: int, ranks: int, documents: int) -> Logging:
    """The second log step of a run with the built-in metrics, of which each rank has seen so many documents."""
    comm = EqualRanks(ranks)
    infos = [ss.SourceInfo(name=f"s{n}", groups=("mix",), weight=1 / sources, rows=10**6) for n in range(sources)]
    aggregator = ss.Aggregator(infos, comm=comm)
    rng = np.random.default_rng(7)
    seconds, peak = 0.0, 0
    for turn in ("first", "timed", "traced"):
        packs = documents * 400 // SEQUENCE_LENGTH
        aggregator.update(made_up(rng, documents, sources=sources, packs=packs, slots=packs * SEQUENCE_LENGTH))
        comm.bytes, before = 0, aggregator.collectives
        if turn == "traced":
            tracemalloc.start()
        begun = time.perf_counter()
        aggregator.log()
        if turn == "timed":
            seconds = time.perf_counter() - begun
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Logging(aggregator.collectives - before, comm.bytes, seconds, peak)


def plan_all(quick: bool) -> dict[str, float]:
    """Print what planning takes; the figures of the largest job."""
    table: list[list[str]] = []
    worst = {"planning_one_lane": 0.0, "planning_lanes": 0.0, "planning_row_groups": 0.0}
    for sources, rows, ranks in _jobs(quick):
        some, lanes = 32 if quick else 400, (ranks, WORKERS)
        costs = (
            planning(sources, rows, ranks, (1, 1), 4 if quick else max(4, 512 // ranks)),
            planning(sources, rows, ranks, lanes, some),
            planning(sources, rows, ranks, lanes, some, group_size(rows)),
        )
        if ranks == MANY:
            worst = {name: max(worst[name], cost.share) for name, cost in zip(worst, costs, strict=True)}
        cells = [f"{cost.milliseconds:.3f} ms {100 * cost.share:.3f} %" for cost in costs]
        table.append([f"{sources}", _power(rows), f"{ranks:,}", *cells])
    columns = ["sources", "rows", "ranks", "one lane", "4 x ranks lanes", "and by row groups"]
    title = f"Planning: a worker's time per step of the job, of a core at {TOKENS_PER_SECOND / 1e6:.0f} M tokens/s"
    report(title, columns, table, {}, as_json=False)
    return worst


def save_all(quick: bool) -> dict[str, float]:
    """Print what states take; the figures of 200 sources on 1,024 ranks, with a lane for each of their workers."""
    table = []
    for sources in (1, 20, 200):
        for ranks in (8, 64, 128 if quick else MANY):
            for lanes in dict.fromkeys(((1, 1), (8, WORKERS), (ranks, WORKERS))):
                if quick and lanes[0] * sources > 1000:
                    continue
                cost = saving(sources, ranks, lanes)
                numbers = [_size(cost.state), _size(cost.received), f"{cost.seconds:.3f} s"]
                table.append([f"{sources}", f"{ranks:,}", f"{lanes[0] * lanes[1]:,}", *numbers])
    columns = ["sources", "ranks", "lanes", "state", "a rank is sent", "merged in"]
    report("Checkpoints", columns, table, {}, as_json=False)
    return {"state_mb": cost.state / 1e6, "state_received_mb": cost.received / 1e6, "state_merge_s": cost.seconds}


def log_all(quick: bool) -> dict[str, float]:
    """Print what log steps take; the figures of 200 sources on 1,024 ranks."""
    table = []
    for sources in (1, 20, 200):
        for ranks in (8, 64, MANY):
            if quick and sources * ranks > 2_000:
                continue
            cost = logging(sources, ranks, DOCUMENTS)
            numbers = [f"{cost.collectives}", _size(cost.received), f"{cost.seconds:.3f} s", _size(cost.memory)]
            table.append([f"{sources}", f"{ranks:,}", *numbers])
    columns = ["sources", "ranks", "collectives", "a rank is sent", "takes", "memory"]
    report(f"Log steps, built-in metrics, {DOCUMENTS:,} documents a rank", columns, table, {}, as_json=False)
    return {"log_mb": cost.received / 1e6, "log_s": cost.seconds, "log_memory_mb": cost.memory / 1e6}


def read_all(quick: bool, figures: dict[str, float], *, as_json: bool) -> None:
    """Print what is fetched of stores by row groups, then all figures: here of 10^9 rows on 1,024 ranks."""
    table = []
    found: dict[tuple[int, int, int, int], float] = {}
    jobs = [(sources, rows, ranks, ranks * WORKERS) for sources, rows, ranks in _jobs(quick)]
    moved = [] if quick else [(1, 10**9, ranks, MANY * WORKERS) for ranks in (64, 8)]
    for sources, rows, ranks, lanes in [*jobs, *moved]:
        group_rows, mine = group_size(rows), lanes // (ranks * WORKERS)
        read = reading(rows // sources, group_rows, lanes, mine, PACKS * SEQUENCE_LENGTH / MEAN_LENGTH / sources)
        rate = requests(TOKENS_PER_SECOND, min(group_rows, rows // sources), read.amplification)
        found[sources, rows, ranks, lanes] = read.amplification
        numbers = [f"{lanes:,}", _size(sources * read.kept), f"{read.amplification:,.2f}", f"{rate:,.0f}"]
        table.append([f"{sources}", _power(rows), f"{ranks:,}", *numbers])
    by_rows = reading_rows(10**9, GROUP_ROWS, 5_000 if quick else 50_000)
    by_rows_rate = requests(TOKENS_PER_SECOND, GROUP_ROWS, by_rows)
    table.append(["shuffle: rows", "10^9", "any", "any", "the store", f"{by_rows:,.0f}", f"{by_rows_rate:,.0f}"])
    columns = ["sources", "rows", "ranks", "lanes", "to be kept", "amplification", "requests/s"]
    title = f"Row groups: io.memory {MEMORY >> 30} GiB, shuffle_groups {SHUFFLE_GROUPS}; requests of the whole job"
    amplification = found[20 if quick else 1, 10**9, MANY, MANY * WORKERS]
    rate = requests(TOKENS_PER_SECOND, GROUP_ROWS, amplification)
    figures |= {"amplification": amplification, "requests_per_s": rate, "requests_per_s_rows": by_rows_rate}
    report(title, columns, table, figures, as_json=as_json)


def _jobs(quick: bool) -> list[tuple[int, int, int]]:
    """Sources, rows and ranks of every job."""
    if quick:
        return [(20, 10**9, 64), (20, 10**9, MANY)]
    return list(product((1, 20, 200), (10**6, 10**9, 10**11), (8, 64, MANY)))


def group_size(rows: int) -> int:
    """Rows of a row group: of larger data they are larger."""
    return max(GROUP_ROWS, rows // MOST_GROUPS)


def _power(rows: int) -> str:
    return f"10^{len(str(rows)) - 1}"


def _size(count: float) -> str:
    return f"{count / 1e6:,.2f} MB"


def main() -> int:
    """Measure, and print the figures."""
    options = arguments("Simulate many ranks in one process.").parse_args()
    figures = plan_all(options.quick) | save_all(options.quick) | log_all(options.quick)
    read_all(options.quick, figures, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
