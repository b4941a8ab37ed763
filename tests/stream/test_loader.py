"""`Loader`: ranks, workers, micro-batches, iterations, errors."""

from __future__ import annotations

import weakref
from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import DataLoader

from streamsft.errors import ConfigError, DataError, EmptySourceError, MetricError, StateError
from streamsft.metrics.metric import Metric
from streamsft.metrics.reducers import Mean
from streamsft.sources.store import TokenStore
from streamsft.stream.collate import Batch
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.types import Sample, Shard
from tests import laws
from tests.fakes import ListSource, source
from tests.mixes import Mix, mixes


def _loader(mix: Mix | None = None, **options: Any) -> Loader:
    return Loader((mix or Mix()).packer(), **{"global_batch_size": 4, "background": False, **options})


def _one_row_per_pack(rows: int, **options: Any) -> Loader:
    packer = Packer(source("s", [4] * rows), 4, lookahead=8)
    return Loader(packer, **{"global_batch_size": 4, "background": False, **options})


@settings(max_examples=8)
@given(mix=mixes(), prefetch=st.integers(1, 4), cut=st.integers(0, 6))
def test_thread_changes_neither_batches_nor_states(mix: Mix, prefetch: int, cut: int) -> None:
    plain, threaded = _loader(mix), _loader(mix, background=True, prefetch=prefetch)
    for left, right in islice(zip(plain, threaded, strict=False), cut):
        assert laws.samples(left) == laws.samples(right)
        assert plain.state_dict() == threaded.state_dict()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("prefetch", [2, 4])
@pytest.mark.parametrize("cut", range(11))
def test_what_was_read_ahead_is_not_consumed(cut: int, prefetch: int, background: bool) -> None:
    """40 rows, 2 ranks of 2 packs a step: head and tail of any cut are all rows, once."""
    found: Counter[int] = Counter()
    for rank in range(2):
        options: Any = {"dp": Shard(rank, 2), "prefetch": prefetch, "background": background}
        begun = _one_row_per_pack(40, **options)
        parts = laws.first(begun, cut)
        resumed = _one_row_per_pack(40, **options)
        resumed.load_state_dict(laws.as_json(begun.state_dict()))
        parts += laws.first(resumed, 10 - cut)
        found.update(seen.row for item in parts for pack in item for seen in pack)
    assert found == Counter(range(40))


def test_steps_are_counted_from_one_over_all_resumes() -> None:
    loader = _loader()
    assert loader.step == 0
    assert [batch.step for batch in islice(loader, 3)] == [1, 2, 3]
    resumed = _loader()
    resumed.load_state_dict(loader.state_dict())
    assert resumed.step == 3
    assert next(iter(resumed)).step == 4


def test_it_has_no_length_and_says_so_to_what_wraps_it() -> None:
    loader = _loader()
    with pytest.raises(TypeError, match=r"a Loader has no length, .* do not wrap it in a torch DataLoader"):
        next(iter(DataLoader(loader, batch_size=None)))  # type: ignore[arg-type]
    assert loader
    assert not loader.begun


def test_iterating_again_goes_on_and_ends_the_iteration_before() -> None:
    loader = _loader()
    old = iter(loader)
    assert next(old).step == 1
    assert [batch.step for batch in islice(loader, 2)] == [2, 3]
    with pytest.raises(StateError, match="another iteration began"):
        next(old)
    assert loader.step == 3


@settings(max_examples=10)
@given(mix=mixes(), size=st.integers(1, 5), background=st.booleans())
def test_micro_batches_tile_the_steps(mix: Mix, size: int, background: bool) -> None:
    whole = [pack for item in laws.first(_loader(mix), 3) for pack in item]
    found: list[Any] = []
    for part in _loader(mix, background=background).micro_batches(size):
        assert len(part) <= size
        found += laws.samples(part)
        if part.step == 3 and len(found) == len(whole):
            break
    assert found == whole


def test_step_is_consumed_with_its_last_micro_batch() -> None:
    loader = _loader()
    parts = loader.micro_batches(2)
    assert [next(parts).step for _ in range(2)] == [1, 1]
    assert loader.state_dict()["step"] == 1
    half = next(parts)
    assert loader.step == 1
    with pytest.raises(StateError, match="in the middle of step 2"):
        loader.state_dict()
    again = next(iter(loader))
    assert again.step == 2
    assert laws.samples(again)[:2] == laws.samples(half)
    with pytest.raises(StateError, match="another iteration began"):
        next(parts)
    assert loader.state_dict()["step"] == 2


def test_micro_batch_of_no_packs_is_refused() -> None:
    with pytest.raises(ConfigError, match="micro_batch_size: 0"):
        next(_loader().micro_batches(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"workers": -1}, "loader.workers: -1"), ({"workers": True}, "loader.workers: True"),
     ({"start_method": "thread"}, "loader.start_method: 'thread' is none of"), ({"prefetch": 0}, "loader.prefetch: 0"),
     ({"global_batch_size": 0}, "loader.global_batch_size: 0"), ({"dp": Shard(0, 3)}, "dp size 3 does not divide")],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _loader(**options)


def test_part_of_a_packer_is_refused() -> None:
    packer = Packer(Mix().flat(), 12, lookahead=4, shard=Shard(0, 2))
    with pytest.raises(ConfigError, match="Loader: 'packer' has Shard"):
        Loader(packer, global_batch_size=4)


def test_lambda_for_workers_is_refused_by_name() -> None:
    metric = Metric("turns", lambda sample: 1.0, [Mean()])
    assert _loader(metrics=[metric])
    with pytest.raises(ConfigError, match=r"metric 'turns' cannot be sent to loader workers .* top of a module"):
        _loader(metrics=[metric], workers=1)


def _tokens(sample: Sample) -> float:
    return float(len(sample))


@pytest.mark.parametrize("background", [False, True])
def test_metric_that_fails_is_named_with_its_row_where_its_batch_would_come(background: bool) -> None:
    seen: list[int] = []

    def value(sample: Sample) -> float:
        seen.append(sample.row)
        if len(seen) > 6:
            raise KeyError("turns")
        return 1.0

    loader = _one_row_per_pack(40, metrics=[Metric("turns", value, [Mean()])], background=background)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(MetricError, match=r"metric 'turns' failed on source 's', row \d+: KeyError"):
        next(iterator)
    assert loader.state_dict()["step"] == 1


def test_metrics_travel_with_the_batch() -> None:
    loader = _loader(metrics=[Metric("tokens", _tokens, [Mean()])])
    for batch in islice(loader, 3):
        assert batch.stats.values["tokens"].tolist() == batch.stats.columns.tokens.tolist()


class Counting(ListSource):
    """Counts the rows that are read."""

    reads = 0

    def read(self, index: Any) -> Any:
        self.reads += len(index)
        return super().read(index)


def test_resume_reads_only_the_rows_of_the_next_batch() -> None:
    rows = [([row, 1, 2], [0, 1, 1]) for row in range(2000)]

    def loader(data: ListSource) -> Loader:
        return Loader(Packer(data, 12, lookahead=100), global_batch_size=4, background=False)

    begun = loader(ListSource("s", rows))
    for _ in islice(begun, 300):
        pass
    data = Counting("s", rows)
    resumed = loader(data)
    resumed.load_state_dict(begun.state_dict())
    assert data.reads == 0
    batch = next(iter(resumed))
    assert data.reads == len(batch.stats) == 16


def test_each_rank_reads_only_its_own_rows() -> None:
    data = Counting("s", [([row, 1], [0, 1]) for row in range(50)])
    packer = Packer(data, 2, lookahead=10)
    next(iter(Loader(packer, global_batch_size=10, dp=Shard(3, 5), background=False)))
    assert data.reads == 2


def test_rows_of_three_passes_come_once_in_each() -> None:
    loader = _one_row_per_pack(16)
    found = Counter((s.row, s.pass_index) for item in laws.first(loader, 12) for pack in item for s in pack)
    assert found == Counter((row, pass_index) for row in range(16) for pass_index in range(3))


_MASKS = st.lists(st.integers(0, 1), min_size=2, max_size=14)
_TO_THE_END = st.builds(lambda before, rest: [0] * before + [1] * rest, st.integers(0, 9), st.integers(2, 9))


@given(
    masks=st.lists(st.one_of(_MASKS, _TO_THE_END).filter(lambda mask: any(mask[1:])), min_size=1, max_size=12),
    slots=st.integers(2, 16),
    overflow=st.sampled_from(["truncate", "split"]),
)
def test_masks_that_are_told_from_their_first_label_make_the_same_batches(
    masks: list[list[int]], slots: int, overflow: Any
) -> None:
    """A token store leaves them unread; a source without `read_ids` reads all of them."""
    listed = ListSource("s", [([*range(1, len(mask) + 1)], mask) for mask in masks])
    stored = TokenStore.from_rows([{"input_ids": range(1, len(m) + 1), "loss_mask": m} for m in masks], name="s")

    def batches(data: Any) -> list[Batch]:
        try:
            packer = Packer(data, slots, lookahead=5, overflow=overflow)
        except EmptySourceError:
            return []
        return list(islice(Loader(packer, global_batch_size=3, background=False), 4))

    for left, right in zip(batches(listed), batches(stored), strict=True):
        assert laws.samples(left) == laws.samples(right)
        assert torch.equal(left.labels, right.labels)
        assert left.stats.columns.supervised.tolist() == right.stats.columns.supervised.tolist()
        assert left.supervised_tokens == int((left.labels != -100).sum())


class Wide(ListSource):
    """A source that gives int64 ids and 0/1 masks, which are not what `Source` asks for."""

    def read(self, index: Any) -> Any:
        ids, masks = super().read(index)
        return [part.astype("int64") for part in ids], [part.astype("int64") for part in masks]


class Strided(ListSource):
    """A source whose ids have gaps between them in memory."""

    def read(self, index: Any) -> Any:
        ids, masks = super().read(index)
        return [part.repeat(2)[::2] for part in ids], masks


@pytest.mark.parametrize("kind", [Wide, Strided])
def test_other_arrays_of_a_source_make_the_same_batches(kind: type[ListSource]) -> None:
    rows = [([row, 1, 2], [0, 1, 1]) for row in range(9)]

    def loader(kind: type[ListSource]) -> Loader:
        return Loader(Packer(kind("s", rows), 12, lookahead=9), global_batch_size=2, background=False)

    assert laws.first(loader(kind), 5) == laws.first(loader(ListSource), 5)
    assert next(iter(loader(kind))).input_ids.dtype == torch.int64


@pytest.mark.parametrize("micro_batch_size", [None, 400])
def test_batch_that_was_let_go_is_not_kept_while_the_next_is_made(micro_batch_size: int | None) -> None:
    alive: list[bool] = []
    last: list[weakref.ref[Batch]] = []

    class Watching(ListSource):
        def read(self, index: Any) -> Any:
            alive.extend(one() is not None for one in last)
            return super().read(index)

    packer = Packer(Watching("s", [([row, 1, 2], [0, 1, 1]) for row in range(2000)]), 3)
    loader = Loader(packer, global_batch_size=400, background=False)
    batches = iter(loader) if micro_batch_size is None else loader.micro_batches(micro_batch_size)
    for _ in range(20):
        last[:] = [weakref.ref(next(batches))]
    assert alive
    assert not any(alive)


def test_sources_say_share_rows_and_what_is_left_out() -> None:
    packer = Packer(Interleave([source("b", [4, 40]), source("a", [4])], [3, 1]), 8, lookahead=4, overflow="drop")
    found = {info.name: info for info in Loader(packer, global_batch_size=1).sources}
    assert list(found) == ["a", "b"]
    assert (found["b"].weight, found["b"].rows, found["b"].groups) == (0.75, 2, ("mix",))


def test_source_that_fails_raises_its_own_error() -> None:
    class Failing(ListSource):
        def read(self, index: Any) -> Any:
            raise DataError("source 's': the disk is gone")

    for background in (False, True):
        packer = Packer(Failing("s", [([1, 2], [0, 1])]), 2, lookahead=1)
        with pytest.raises(DataError, match="the disk is gone"):
            next(iter(Loader(packer, global_batch_size=1, background=background)))


def test_printed_it_is_the_tree_of_the_pipeline() -> None:
    lines = str(_loader(dp=Shard(1, 2)).info).splitlines()
    assert lines[0] == "loader  4 packs per step, rank 1 of 2 takes 2, read by in process"
    assert lines[1].startswith("└── packer  12 slots, best-fit over 7 draws")
    assert "read by a background thread" in str(_loader(background=True).info)
    assert "read by 3 workers" in str(_loader(workers=3).info)


class Liar(ListSource):
    """Gives a token less than it promises of its row 3."""

    def read(self, index: Any) -> Any:
        ids, masks = super().read(index)
        return [i[:-1] if r == 3 else i for r, i in zip(index.tolist(), ids, strict=True)], masks


def test_source_whose_rows_are_not_of_the_length_it_says_is_named() -> None:
    liar = Liar("own", [([row, 1, 2, 3, 4], [0, 1, 1, 1, 1]) for row in range(5)])
    loader = Loader(Packer(liar, 16), global_batch_size=2)
    with pytest.raises(
        DataError, match=r"source 'own', row 3: read\(\) gave 4 ids and 5 mask entries where lengths says 5"
    ):
        list(islice(loader, 9))
