"""Rows that streaming sources refuse: counted exactly, over any ranks, topology, workers and resumes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from streamsft.comm import Comm, LocalComm, ThreadComm
from streamsft.errors import ConfigError, MetricError
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.stats import SampleStats, SourceInfo
from streamsft.sources.store import TokenStore
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.feed import Feed
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.text.chat import ChatTokenizer
from streamsft.text.conversation import REASONS as CHAT_REASONS
from streamsft.types import Shard
from tests.metrics.runs import assert_same_record, batch
from tests.text.tokenizers import bpe

KINDS = [
    SourceInfo(name="a", groups=("mix",), weight=0.5, reasons=("bad_row", "short")),
    SourceInfo(name="b", groups=("mix", "inner"), weight=0.25, reasons=("bad_row", "held_out")),
    SourceInfo(name="c", groups=("mix", "inner"), weight=0.25, rows=9, rejected={"bad_row": 7, "bad_role": 1}),
]
REASONS = ["bad_row", "short", "held_out", "a surprise", "other"]


def refusing(*refused: tuple[int, str, int]) -> SampleStats:
    return batch(0, 0, refused=refused)


def rejections(record: dict[str, float], node: str) -> dict[str, float]:
    """The numbers of rejected rows of a node, by the rest of their keys."""
    start = f"data_{node}/rejected"
    return {key.removeprefix(start): value for key, value in record.items() if key.startswith(start)}


refusals = st.tuples(st.integers(0, 2), st.sampled_from(REASONS), st.integers(1, 5))


@settings(max_examples=30)
@given(
    st.integers(1, 4), st.lists(st.lists(st.tuples(st.integers(0, 3), refusals), max_size=8), min_size=1, max_size=4)
)
def test_every_refusal_counts_once_whichever_rank_saw_it(
    size: int, intervals: list[list[tuple[int, tuple[int, str, int]]]]
) -> None:
    def body(comm: Comm) -> list[dict[str, float]]:
        mine = Aggregator(KINDS, comm=comm)
        records = []
        for interval in intervals:
            for rank, refused in interval:
                if rank % size == comm.rank:
                    mine.update(refusing(refused))
            records.append(mine.log())
        return records

    ranks = ThreadComm.run(size, body)
    assert all(r == ranks[0] for r in ranks)
    total: Counter[tuple[int, str]] = Counter()
    for record, interval in zip(ranks[0], intervals, strict=True):
        lately: Counter[tuple[int, str]] = Counter()
        for _, (source, reason, count) in interval:
            lately[source, reason if reason in REASONS[:3] else "other"] += count
        total += lately
        for node, members in {"a": [0], "b": [1], "c": [2], "inner": [1, 2], "mix": [0, 1, 2]}.items():
            assert rejections(record, node) == expected(total, lately, members)


def expected(total: Counter[tuple[int, str]], lately: Counter[tuple[int, str]], members: list[int]) -> dict[str, int]:
    """What is reported of a node, from what its sources refused."""
    refused: Counter[str] = Counter()
    for (source, reason), count in total.items():
        refused[reason] += count if source in members else 0
    refused = +refused
    rejected = Counter(refused)
    for source in members:
        rejected.update(KINDS[source].rejected)
    numbers = {"": rejected.total()} | {f"_{reason}": count for reason, count in rejected.items()}
    if members != [2] or refused:
        recent = {reason: sum(lately[source, reason] for source in members) for reason in refused}
        numbers |= {"_interval": sum(recent.values())}
        numbers |= {f"_{reason}_interval": count for reason, count in recent.items()}
    return numbers


def test_a_source_that_stands_there_twice_is_one() -> None:
    before = replace(KINDS[1], weight=0.0, reasons=("too_long",), groups=("old",), rows=99)
    mine = Aggregator([*KINDS, before])
    mine.update(batch(0, 40, [3], refused=[(3, "too_long", 2), (1, "bad_row", 1)]))
    mine.update(batch(1, 30, [1]))
    record = mine.log()
    refused = {"": 5, "_bad_row": 1, "_too_long": 2, "_held_out": 2}
    assert rejections(record, "b") == refused | {f"{key}_interval": count for key, count in refused.items()}
    assert record["data_b/tokens"] == record["data/tokens"]
    assert record["data_b/share_asked"] == 0.25
    assert record["data_b/share_samples"] == 1.0
    assert not any(key.startswith("data_old/") for key in record)


def test_numbers_of_sources_that_are_not_there_are_refused() -> None:
    for number in (3, -1):
        with pytest.raises(MetricError, match=f"source index {number}, but there are 3 sources"):
            Aggregator(KINDS).update(refusing((number, "short", 1)))
    with pytest.raises(ConfigError, match="reason name 'a/b'"):
        Aggregator([SourceInfo(name="a", reasons=("a/b",))])


def test_ranks_that_declare_different_reasons_all_raise() -> None:
    def body(comm: Comm) -> str:
        with pytest.raises(MetricError, match="differ between ranks") as caught:
            Aggregator([SourceInfo(name="a", reasons=("x", "y")[: comm.rank + 1])], comm=comm).log()
        return str(caught.value)

    assert "rank 1 has 'refused y: Refusals() over 1: a'" in ThreadComm.run(2, body)[0]


def long_enough(sample: dict[str, Any]) -> bool:
    return len(sample["input_ids"]) > 3


def write_rows(folder: Path) -> Path:
    """Rows of tokens of many lengths in four files, among them rows that cannot be used for one reason or another."""
    chance = random.Random(4)
    for file in range(4):
        rows = []
        for _ in range(60):
            length = chance.randint(2, 30)
            mask = [int(chance.random() < 0.1) for _ in range(length)]
            rows.append("{not json" if chance.random() < 0.1 else json.dumps({"input_ids": mask, "loss_mask": mask}))
        (folder / f"{file}.jsonl").write_text("\n".join(rows))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows"))


def make_streamed(folder: Path) -> StreamingSource:
    return StreamingSource(folder, name="streamed", token_filters=[long_enough], shuffle_window=16)


def make_loader(folder: Path, dp: Shard, workers: int = 0, lanes: int = 4) -> Loader:
    fixed = TokenStore.from_rows([{"input_ids": [1] * n, "loss_mask": [1] * n} for n in range(2, 20)], name="fixed")
    packer = Packer(Interleave([fixed, make_streamed(folder)], [1, 3], seed=3), 24, lookahead=16, overflow="drop")
    groups = 1 if lanes == 1 else 2
    return Loader(packer, global_batch_size=8, dp=dp, lanes_per_step=lanes, lane_groups=groups, workers=workers)


def run_steps(
    folder: Path, legs: Sequence[tuple[int, int]], workers: int = 0, micro: int = 2
) -> tuple[dict[int, dict[str, float]], Any]:
    """Records of every third step of a run that goes on with another number of ranks leg by leg: (ranks, last step)."""
    records: dict[int, dict[str, float]] = {}
    state: Any = None
    for size, stop in legs:

        def body(comm: Comm, stop: int = stop, text: str = json.dumps(state)) -> Any:
            loader = make_loader(folder, Shard(comm.rank, comm.size), workers)
            mine = Aggregator(loader.sources, comm=comm)
            if text != "null":
                stream, metrics = json.loads(text)
                loader.load_state_dict(stream)
                mine.load_state(metrics)
            found, first = {}, loader.step
            batches = loader.micro_batches(micro)
            while loader.step < stop:
                mine.update(next(batches).stats)
                if loader.step % 3 == 0 and loader.step > first and loader.step not in found:
                    found[loader.step] = mine.log()
            return found, [loader.gather_state(comm), mine.gather_state()]

        results = ThreadComm.run(size, body)
        assert all(r == results[0] for r in results)
        records |= results[0][0]
        state = results[0][1]
    return records, state


def test_a_run_counts_the_same_refusals_on_any_ranks_and_after_any_resumes(folder: Path) -> None:
    whole, state = run_steps(folder, [(1, 24)])
    assert whole[24]["data_streamed/rejected"] > whole[3]["data_streamed/rejected"] > 0
    given = set(rejections(whole[24], "streamed"))
    assert {"_bad_row", "_nothing_supervised", "_too_long", "_long_enough", "_too_long_interval"} <= given
    assert "_other" not in given
    assert rejections(whole[24], "fixed") == {"": 0}
    for legs in ([(4, 24)], [(2, 5), (1, 13), (4, 24)], [(1, 1), (4, 2), (2, 24)]):
        records, last = run_steps(folder, legs)
        assert last == state
        assert records.keys() == whole.keys()
        for step, record in whole.items():
            assert_same_record(records[step], record)


def test_workers_ship_their_refusals(folder: Path) -> None:
    assert run_steps(folder, [(1, 6)], workers=2)[0] == run_steps(folder, [(1, 6)])[0]


def test_what_was_refused_is_all_that_lies_between_the_rows_drawn(folder: Path) -> None:
    loader = make_loader(folder, Shard(), lanes=1)
    mine = Aggregator(loader.sources)
    for part in loader:
        mine.update(part.stats)
        _, emitted, *sources = loader.state_dict()["lanes"]["0"]
        if loader.step > 30 and not emitted:  # a finished window: all that was planned was given out
            break
    drawn = sources[1][1]
    feed = Feed(make_streamed(folder), seed=3, lane=0, lanes=1, packing=loader.packer.packing)
    counts: Counter[str] = Counter()
    for row in feed.rows(range(drawn)):
        counts.update(row.refused)
    record = mine.log()
    assert record["data_streamed/samples"] == drawn > 240
    assert rejections(record, "streamed") == {
        "": counts.total(),
        "_interval": counts.total(),
        **{f"_{reason}{suffix}": count for reason, count in counts.items() for suffix in ("", "_interval")},
    }


def test_a_loader_says_which_reasons_there_are(folder: Path) -> None:
    infos = {info.name: info for info in make_loader(folder, Shard()).sources}
    assert infos["fixed"].reasons == ()
    assert infos["streamed"].reasons == ("bad_row", "long_enough", "nothing_supervised", "too_long")


def test_every_way_to_make_tokens_says_why_it_may_refuse(folder: Path) -> None:
    def reasons(**arguments: Any) -> set[str]:
        return set(StreamingSource(folder, name="s", **arguments).reasons)

    chat = ChatTokenizer(bpe())
    always = {*CHAT_REASONS, "too_long"}
    assert reasons(transform=chat, format="messages") == always
    assert reasons(transform=chat, messages=lambda row: None) == always | {"messages"}
    assert reasons(transform=lambda row: None, holdout=0.1) == always | {"transform", "held_out"}
    assert reasons(filters={"odd": bool}) == {"bad_row", "odd", "nothing_supervised", "too_long"}
    assert reasons(encode=lambda values: []) == {"nothing_supervised", "too_long"}


def test_a_source_that_an_edit_removes_is_counted_to_the_end_and_kept(folder: Path) -> None:
    before = make_loader(folder, Shard())
    mine = Aggregator(before.sources)
    for part in before:
        mine.update(part.stats)
        if part.step == 2:
            break
    seen = mine.log()
    kept = TokenStore.from_rows([{"input_ids": [1] * 9, "loss_mask": [1] * 9}] * 9, name="fixed")
    packer = Packer(Interleave([kept], seed=3), 24, lookahead=16, overflow="drop")
    after = Loader(packer, global_batch_size=8, lanes_per_step=4, lane_groups=2)
    after.load_state_dict(before.state_dict(), before=before.packer)
    names = [source.name for source in after.sources]
    assert names == ["fixed", "fixed", "streamed"]
    assert [source.weight for source in after.sources] == [1.0, 0.0, 0.0]
    other = Aggregator(after.sources)
    other.load_state(mine.gather_state())
    found = [part.stats for part, _ in zip(after, range(12), strict=False)]
    for stats in found:
        other.update(stats)
    record = other.log()
    refused = sum(count for stats in found for number, _, count in stats.refused if names[number] == "streamed")
    tables = [stats.columns for stats in found]
    tokens = [sum(int(t.tokens[[names[n] == name for n in t.source]].sum()) for t in tables) for name in names[1:]]
    assert refused > 0
    assert record["data_streamed/rejected"] == seen["data_streamed/rejected"] + refused
    assert record["data_fixed/tokens"] == seen["data_fixed/tokens"] + tokens[0]
    assert record["data_streamed/tokens"] == seen["data_streamed/tokens"] + tokens[1]
    later = Aggregator(after.sources[:1])
    later.load_state(other.gather_state())
    again = later.log()
    assert {key for key, value in record.items() if again.get(key) != value and not key.endswith("_interval")} == set()


def test_a_mix_adds_up_what_was_known_and_what_was_found() -> None:
    mine = Aggregator(KINDS, comm=LocalComm())
    mine.update(refusing((0, "bad_row", 2), (1, "held_out", 4)))
    mine.log()
    record = rejections(mine.log(), "mix")
    since_the_start = {"": 14, "_bad_row": 9, "_bad_role": 1, "_held_out": 4}
    assert record == since_the_start | {"_interval": 0, "_bad_row_interval": 0, "_held_out_interval": 0}
