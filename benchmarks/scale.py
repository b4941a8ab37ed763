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
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from measuring import arguments, report
from scaling import MEAN_LENGTH, SEQUENCE_LENGTH, SHUFFLE_GROUPS, EqualRanks, SpeakingRanks, make_plan

import streamsft as ss
from streamsft.comm import gather_json
from streamsft.order.groups import GroupOrder
from streamsft.order.keys import derive_key, hash64
from streamsft.order.permutation import permute
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
MEMORY = 1 << 30  # io.memory
TOKEN_BYTES = 5  # of a decoded row group
REQUESTS = 2  # of a row group: its object's version, and its bytes
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

    received: int
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
        tokens = rng.integers(2, 4000, documents)
        columns = ss.SampleColumns(
            source=rng.integers(0, sources, documents).astype(np.int32),
            tokens=tokens,
            supervised=tokens // 2,
            turns=tokens % 5,
            cut=np.zeros(documents, np.int64),
            first=np.ones(documents, np.bool_),
            pass_index=np.zeros(documents, np.int64),
        )
        slots = documents * 400 // SEQUENCE_LENGTH * SEQUENCE_LENGTH
        aggregator.update(ss.SampleStats(columns, packs=slots // SEQUENCE_LENGTH, slots=slots, values={}))
        comm.bytes = 0
        if turn == "traced":
            tracemalloc.start()
        begun = time.perf_counter()
        aggregator.log()
        if turn == "timed":
            seconds = time.perf_counter() - begun
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Logging(comm.bytes, seconds, peak)


def fetched(turns: Iterable[np.ndarray[Any, Any]], kept: int) -> int:
    """Row groups fetched by a process that keeps the `kept` last used ones; `turns` are the groups read together."""
    cache: OrderedDict[int, None] = OrderedDict()
    count = 0
    for groups in turns:
        for group in groups.tolist():
            count += group not in cache
            cache[group] = None
            cache.move_to_end(group)
        while len(cache) > kept:
            cache.popitem(last=False)
    return count


def reading(groups: int, lanes: int, mine: int, blocks: int) -> float:
    """Rows fetched over rows drawn of a store that is read by row groups.

    Args:
        groups: its row groups.
        lanes: lanes that they are dealt to.
        mine: lanes of one process, which take turns.
        blocks: blocks of `SHUFFLE_GROUPS` groups that each lane goes through.
    """
    bounds = np.arange(groups + 1) * GROUP_ROWS
    order = GroupOrder(seed=7, name="web", bounds=bounds, block=SHUFFLE_GROUPS)
    drawn = np.arange(blocks * SHUFFLE_GROUPS * GROUP_ROWS)
    numbers = [order.located(lane, lanes, drawn)[1] // GROUP_ROWS for lane in range(mine)]
    together = round(PACKS * SEQUENCE_LENGTH / MEAN_LENGTH)  # rows of a lane in a step
    turns = (np.unique(lane[start : start + together]) for start in range(0, len(drawn), together) for lane in numbers)
    return fetched(turns, _kept()) * GROUP_ROWS / (len(drawn) * mine)


def reading_rows(groups: int, rows: int) -> float:
    """The same for a store whose rows are shuffled over a whole pass, over the first `rows` draws."""
    key = hash64(derive_key(7, "web", "rows"), np.zeros(1, np.uint64))
    numbers = permute(np.arange(rows), groups * GROUP_ROWS, key) // GROUP_ROWS
    together = round(PACKS * SEQUENCE_LENGTH / MEAN_LENGTH)
    turns = (np.unique(numbers[start : start + together]) for start in range(0, rows, together))
    return fetched(turns, _kept()) * GROUP_ROWS / rows


def _kept() -> int:
    return int(MEMORY / (GROUP_ROWS * MEAN_LENGTH * TOKEN_BYTES))


def requests(amplification: float) -> float:
    """Requests per second of the whole job."""
    return TOKENS_PER_SECOND / (GROUP_ROWS * MEAN_LENGTH) * amplification * REQUESTS


def plan_all(quick: bool) -> dict[str, float]:
    """Print what planning takes; the figures of the largest job."""
    every_size = [(20, 10**9)] if quick else [(n, rows) for n in (1, 20, 200) for rows in (10**6, 10**9, 10**11)]
    some = 32 if quick else 800
    table: list[list[str]] = []
    worst = {"planning_one_lane": 0.0, "planning_lanes": 0.0, "planning_row_groups": 0.0}
    for sources, rows in every_size:
        for ranks in (8, 64, MANY):
            group_rows = max(GROUP_ROWS, rows // MOST_GROUPS)
            lanes = (ranks, WORKERS)
            one = planning(sources, rows, ranks, (1, 1), 4 if quick else max(4, 1024 // ranks))
            many = planning(sources, rows, ranks, lanes, some)
            groups = planning(sources, rows, ranks, lanes, some, group_rows)
            figures = zip(worst, (one, many, groups), strict=True)
            if ranks == MANY:
                worst |= {name: max(worst[name], cost.share) for name, cost in figures}
            cells = [
                cell for cost in (one, many, groups) for cell in (f"{cost.milliseconds:.3f}", _percent(cost.share))
            ]
            table.append([f"{sources}", f"{rows:.0e}", f"{ranks:,}", *cells])
    columns = ["sources", "rows", "ranks", "one lane: ms", "of a core", "4 x ranks lanes: ms", "of a core"]
    title = f"Planning: time of a worker per step of the job; of a core at {TOKENS_PER_SECOND / 1e6:.0f} M tokens/s"
    report(title, [*columns, "by row groups: ms", "of a core"], table, {}, as_json=False)
    return worst


def save_all(quick: bool) -> dict[str, float]:
    """Print what states take; the figures of 200 sources on 1,024 ranks."""
    table = []
    for sources in (1, 20, 200):
        for ranks in (8, 64, 128 if quick else MANY):
            for lanes in ((1, 1), (8, 4), (ranks, WORKERS)):
                if quick and lanes[0] * sources > 1000:
                    continue
                cost = saving(sources, ranks, lanes)
                numbers = [_size(cost.state), _size(cost.received), f"{cost.seconds:.3f} s"]
                table.append([f"{sources}", f"{ranks:,}", f"{lanes[0] * lanes[1]:,}", *numbers])
    report(
        "Checkpoints", ["sources", "ranks", "lanes", "state", "a rank is sent", "merged in"], table, {}, as_json=False
    )
    return {"state_mb": cost.state / 1e6, "state_received_mb": cost.received / 1e6, "state_merge_s": cost.seconds}


def log_all(quick: bool) -> dict[str, float]:
    """Print what log steps take; the figures of 200 sources on 1,024 ranks."""
    table = []
    for sources in (1, 20, 200):
        for ranks in (8, 64, MANY):
            if quick and sources * ranks > 20_000:
                continue
            cost = logging(sources, ranks, 4000)
            table.append(
                [f"{sources}", f"{ranks:,}", _size(cost.received), f"{cost.seconds:.2f} s", _size(cost.memory)]
            )
    columns = ["sources", "ranks", "a rank is sent", "takes", "memory"]
    report("Log steps, built-in metrics, 4,000 documents a rank", columns, table, {}, as_json=False)
    return {"log_mb": cost.received / 1e6, "log_s": cost.seconds, "log_memory_mb": cost.memory / 1e6}


def read_all(quick: bool) -> tuple[list[list[str]], dict[str, float]]:
    """What is fetched of a store of 10^9 rows over 4,096 lanes, as a table and figures."""
    groups, lanes = 10**9 // GROUP_ROWS, MANY * WORKERS
    table, found = [], {}
    for ranks in (MANY,) if quick else (MANY, 64, 8):
        mine = lanes // (ranks * WORKERS)
        found[ranks] = reading(groups, lanes, mine, 1 if quick or mine > 64 else 2)
        need = mine * SHUFFLE_GROUPS * GROUP_ROWS * MEAN_LENGTH * TOKEN_BYTES
        rate = requests(found[ranks])
        table.append(["row_groups", f"{ranks:,}", f"{mine}", _size(need), f"{found[ranks]:,.2f}", f"{rate:,.0f}"])
    by_rows = reading_rows(groups, 5_000 if quick else 100_000)
    table.append(["rows", "any", "any", "the store", f"{by_rows:,.0f}", f"{requests(by_rows):,.0f}"])
    figures = {"amplification": found[MANY], "requests_per_s": requests(found[MANY])}
    return table, figures | {"requests_per_s_rows": requests(by_rows)}


def _percent(share: float) -> str:
    return f"{100 * share:.3f} %"


def _size(count: float) -> str:
    return f"{count / 1e6:,.2f} MB"


def main() -> int:
    """Measure, and print the figures."""
    options = arguments("Simulate many ranks in one process.").parse_args()
    figures = plan_all(options.quick) | save_all(options.quick) | log_all(options.quick)
    table, reads = read_all(options.quick)
    columns = ["shuffle", "ranks", "lanes of a process", "to be kept", "amplification", "requests/s of the job"]
    title = f"A store of 10^9 rows, io.memory {MEMORY >> 30} GiB, shuffle_groups {SHUFFLE_GROUPS}"
    report(title, columns, table, figures | reads, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
