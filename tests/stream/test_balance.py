"""Balanced steps: the same packs, more evenly on ranks; whatever the topology, and going on on another one."""

from __future__ import annotations

import json
from itertools import islice, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.comm import ThreadComm
from streamsft.errors import ConfigError
from streamsft.stream.balance import Balance, balanced_ranks, pack_costs
from streamsft.stream.collate import Batch
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.topology import Topology
from streamsft.types import Shard
from tests.fakes import streamed
from tests.mixes import Mix, mixes, random_lengths, random_rows


def loader(mix: Mix, balance: Balance, dp: Shard | None = None, **options: Any) -> Loader:
    defaults: dict[str, Any] = {"global_batch_size": 6, "background": False}
    return Loader(mix.packer(), dp=dp, balance=balance, **{**defaults, **options})


def packs(batches: list[Batch]) -> list[list[Any]]:
    """Rows, ids and labels of each pack of some ranks' batches, sorted."""
    return sorted(
        [rows, ids, labels]
        for batch in batches
        for rows, ids, labels in zip(batch.rows, batch.input_ids.tolist(), batch.labels.tolist(), strict=True)
    )


def costs(batch: Batch, balance: Balance = "attention") -> int:
    table = batch.documents.table
    return int(pack_costs(table.length, np.searchsorted(table.pack, np.arange(len(batch))), balance).sum())


@settings(max_examples=25)
@given(
    mix=mixes(),
    balance=st.sampled_from(["tokens", "attention"]),
    ranks=st.sampled_from([2, 3, 6]),
    lanes=st.sampled_from([(1, 1), (2, 1), (3, 2)]),
    cut=st.integers(0, 3),
)
def test_steps_hold_the_same_packs_on_any_topology_and_over_resumes(
    mix: Mix, balance: Balance, ranks: int, lanes: tuple[int, int], cut: int
) -> None:
    options = {"lanes_per_step": lanes[0], "lane_groups": lanes[1]}
    plain = list(islice(loader(mix, "none", **options), 6))
    whole = loader(mix, balance, **options)
    before = list(islice(whole, cut))
    assert [batch.rows for batch in before] == [batch.rows for batch in plain[:cut]], "one rank keeps the order"

    def rank(comm: ThreadComm) -> tuple[list[Batch], str]:
        mine = loader(mix, balance, Shard(comm.rank, comm.size), **options)
        mine.load_state_dict(state)
        return list(islice(mine, 6 - cut)), json.dumps(mine.gather_state(comm))

    state = json.loads(json.dumps(whole.state_dict()))
    found = ThreadComm.run(ranks, rank)
    for number, batches in enumerate(zip(*(batches for batches, _ in found), strict=True), cut):
        assert {len(batch) for batch in batches} == {6 // ranks}
        assert packs(list(batches)) == packs([plain[number]])
    last = loader(mix, "none", **options)
    last.load_state_dict(json.loads(found[0][1]))
    again = loader(mix, "none", **options)
    assert [batch.rows for batch in islice(last, 2)] == [batch.rows for batch in islice(again, 6, 8)]


def test_worker_processes_give_the_same_batches() -> None:
    mix, dp = Mix(), Shard(1, 3)
    pairs = zip(loader(mix, "attention", dp), loader(mix, "attention", dp, workers=1), strict=True)
    for mine, theirs in islice(pairs, 4):
        assert mine.rows == theirs.rows


def test_attention_is_even_over_ranks() -> None:
    source = random_rows("chats", 5, random_lengths(6, 800, median=60, spread=1.0, longest=512))
    spreads: dict[Balance, list[float]] = {}
    choices: tuple[Balance, ...] = ("none", "attention")
    for balance in choices:
        packer = Packer(Interleave([source], seed=3), 512)
        ranks = [
            Loader(packer, global_batch_size=64, dp=Shard(rank, 8), balance=balance, background=False)
            for rank in range(8)
        ]
        steps = islice(zip(*map(iter, ranks), strict=True), 4)
        loads = [[costs(batch) for batch in batches] for batches in steps]
        spreads[balance] = [(max(step) - min(step)) / np.mean(step) for step in loads]
    assert np.mean(spreads["attention"]) * 4 < np.mean(spreads["none"])


@given(costs=st.lists(st.integers(1, 100), min_size=1, max_size=6), ranks=st.integers(1, 4))
def test_packs_are_dealt_equally_and_never_worse_than_in_their_order(costs: list[int], ranks: int) -> None:
    given = np.array(costs * ranks, np.int64)
    chosen = balanced_ranks(given, ranks)
    assert np.bincount(chosen, minlength=ranks).tolist() == [len(costs)] * ranks
    assert np.array_equal(chosen, balanced_ranks(given.copy(), ranks))


def test_two_ranks_are_as_even_as_they_can_be_made_by_exchanging_two_packs() -> None:
    given = np.array([90, 1, 2, 40, 50, 3], np.int64)
    chosen = balanced_ranks(given, 2)
    gaps = [abs(sum(order[:3]) - sum(order[3:])) for order in permutations(given.tolist())]
    assert abs(int(given[chosen == 0].sum() - given[chosen == 1].sum())) == min(gaps)


def test_costs_of_packs_are_those_of_their_documents() -> None:
    lengths, firsts = np.array([3, 4, 5, 1]), np.array([0, 2, 3])
    assert pack_costs(lengths, firsts, "tokens").tolist() == [7, 5, 1]
    assert pack_costs(lengths, firsts, "attention").tolist() == [25, 25, 1]


def test_what_one_process_alone_can_plan_is_refused() -> None:
    mix = Mix()
    with pytest.raises(ConfigError, match=r"loader\.balance: attention has every rank plan all .* set balance"):
        Loader(mix.packer_by_groups(), global_batch_size=8, balance="attention")
    stream = streamed("s", [[([1, 2], [0, 1], "")]])
    with pytest.raises(ConfigError, match=r"loader\.balance: tokens"):
        Loader(Packer(stream, 8), global_batch_size=8, balance="tokens")
    with pytest.raises(ConfigError, match=r"loader\.balance: 'even' is none of none, tokens, attention"):
        Topology(global_batch_size=8, dp=Shard(), balance="even")  # type: ignore[arg-type]


def test_it_is_no_part_of_what_defines_a_stream() -> None:
    mix = Mix()
    assert loader(mix, "attention").fingerprint == loader(mix, "none").fingerprint
    assert "attention even" in str(loader(mix, "attention").info)
