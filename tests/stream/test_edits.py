"""Edits of the mix in the middle of a run: what goes on, what starts, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import StateError
from streamsft.stream.feed import Feed
from streamsft.stream.lane import Lane
from streamsft.stream.loader import Loader
from streamsft.types import Shard
from tests import laws
from tests.laws import Seen
from tests.passes import lane_states, passes_behind
from tests.streams import Shards, StreamedMix, shard_lists

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than cores

BEFORE = StreamedMix(
    shards={
        "kept": Shards(),
        "indexed": Shards(indexed=True),
        "gone": Shards(lengths=((4, 5), (6,))),
        "changed": Shards(lengths=((3, 4, 5, 6),)),
    },
    weights=(1.0, 1.0, 2.0, 1.0),
)
AFTER = replace(
    BEFORE,
    shards={
        "added": Shards(lengths=((5, 5), (2, 9))),
        "kept": Shards(),
        "indexed": Shards(indexed=True),
        "changed": Shards(lengths=((3, 4, 5, 6),), version=1),
    },
    weights=(2.0, 2.0, 1.0, 0.5),
)
UNTOUCHED = ["kept", "indexed"]


def _steps(loader: Loader, count: int) -> list[list[list[Seen]]]:
    return laws.first(loader, count)


def _edited(step: int, **options: Any) -> tuple[list[list[list[Seen]]], Loader]:
    """What a run consumed before its mix was edited behind `step`, and a loader of the edited one at that step."""
    old = BEFORE.loader(**options)
    head = _steps(old, step)
    loader = AFTER.loader(**options)
    loader.load_state_dict(laws.as_json(old.state_dict()), before=BEFORE.packer())
    return head, loader


def _lanes(steps: list[list[list[Seen]]], loader: Loader) -> dict[int, list[Seen]]:
    """The documents of each lane."""
    topology = loader.topology
    found: dict[int, list[Seen]] = {}
    for number, packs in enumerate(steps):
        share = len(packs) // topology.lanes_per_step
        for place, lane in enumerate(topology.group(number)):
            mine = packs[place * share : (place + 1) * share]
            found.setdefault(lane, []).extend(seen for pack in mine for seen in pack)
    return found


def _order(mix: StreamedMix, name: str, lane: int, lanes: int, count: int) -> list[tuple[int, int]]:
    """Row and pass of the first draws of a source on a lane, whatever it is mixed with."""
    alone = replace(mix, shards={name: mix.by_name[name]}, weights=(1.0,), lookahead=1)
    plan = alone.packer().plan(lanes)
    if plan.streaming:
        feed = Feed(
            plan.leaves[0].streamed,
            seed=mix.seed,
            lane=lane,
            lanes=lanes,
            packing=plan.packing,  # type: ignore[arg-type]
        )
        return [(row.row, row.pass_index) for row in feed.rows(range(count))]
    cursor = Lane(plan, lane)
    documents = cursor.take(count)
    return list(zip(documents.row.tolist(), documents.pass_index.tolist(), strict=True))


@pytest.mark.parametrize("step", [0, 1, 5, 20])
@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_untouched_sources_go_on_row_for_row(step: int, unit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.BEFORE", replace(BEFORE, unit=unit))
    monkeypatch.setattr(f"{__name__}.AFTER", replace(AFTER, unit=unit))
    head, loader = _edited(step)
    steps = head + _steps(loader, 60)
    plan, states = lane_states(loader)
    for lane, seen in _lanes(steps, loader).items():
        for name in UNTOUCHED:
            given_out = [(one.row, one.pass_index) for one in seen if one.source == name]
            drawn = states[lane].drawn[plan.names.index(name)]
            order = _order(BEFORE, name, lane, plan.lanes, drawn + plan.draws)
            assert set(order[:drawn]) <= set(given_out) <= set(order), "a row was lost or repeated"
            assert len(given_out) == len(set(given_out))
    everything = [seen for packs in steps for pack in packs for seen in pack if seen.source in UNTOUCHED]
    rows = [part for part in AFTER.rows() if part.source.name in UNTOUCHED]
    laws.tokens_conserved(everything, rows)
    laws.exactly_once(everything, rows, passes_behind(loader))
    assert min(passes_behind(loader)[name] for name in UNTOUCHED) >= 2


def test_open_windows_are_finished_under_the_old_mix() -> None:
    head, loader = _edited(5)
    steps = head + _steps(loader, 30)
    whole = _lanes(_steps(BEFORE.loader(), 35), loader)
    for lane, seen in _lanes(steps, loader).items():
        changed = next(at for at, (one, other) in enumerate(zip(seen, whole[lane], strict=False)) if one != other)
        assert changed > sum(one in head[0] for one in seen)
        assert "added" not in {one.source for one in seen[:changed]}
        assert not {"gone"} & {one.source for one in seen[changed:]}
    names = Counter(seen.source for packs in steps[20:] for pack in packs for seen in pack)
    assert set(names) == set(AFTER.by_name)


def test_source_whose_content_changed_starts_again() -> None:
    head, loader = _edited(9)
    steps = head + _steps(loader, 60)
    first, second = (mix.rows() for mix in (BEFORE, AFTER))
    seen = [one for packs in steps for pack in packs for one in pack if one.source == "changed"]
    old = {one for part in first for one in part.all if one.source == "changed"}
    new = {one for part in second for one in part.all if one.source == "changed"}
    passes = Counter((one.pass_index, one._replace(pass_index=0)) for one in seen)
    assert {one for _, one in passes} <= old | new
    assert all((0, one) in passes for one in new), "the changed source did not begin with pass 0"
    assert max(passes.values()) == 1


def test_weights_hold_behind_an_edit() -> None:
    before = StreamedMix(shards={"a": Shards(), "b": Shards()}, weights=(1.0, 1.0), lookahead=16)
    after = replace(before, weights=(1.0, 3.0))
    old = before.loader()
    _steps(old, 30)
    loader = after.loader()
    loader.load_state_dict(old.state_dict(), before=before.packer())
    _, states = lane_states(old)
    _steps(loader, 200)
    _, later = lane_states(loader)
    for lane, state in later.items():
        drawn = [new - old for new, old in zip(state.drawn, states[lane].drawn, strict=True)]
        assert abs(drawn[0] - sum(drawn) / 4) <= 16 / 4 + 4


@settings(max_examples=12)
@given(data=st.data(), step=st.integers(0, 6), unit=st.sampled_from(["samples", "tokens"]))
def test_resumes_exactly_behind_an_edit(data: st.DataObject, step: int, unit: Any) -> None:
    """Cut behind every step after the edit; the mix before it is needed until all its windows are finished."""
    limit = 8
    pool = {name: data.draw(shard_lists(limit), name) for name in "abcd"}
    weight = st.one_of(st.floats(0.05, 20.0), st.sampled_from([{0: 1.0, 9: 0.1}, {0: 0.0, 4: 1.0}, {3: 2.0, 5: 0.0}]))
    names = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True)

    def mix(label: str) -> StreamedMix:
        chosen = data.draw(names, label)
        weights = (data.draw(st.floats(0.05, 20.0)), *(data.draw(weight) for _ in chosen[1:]))
        shards = {name: pool[name] for name in chosen}
        return StreamedMix(seed=step, shards=shards, weights=weights, unit=unit, sequence_length=limit, lookahead=5)

    before, after = mix("before"), mix("after")
    old = before.loader()
    _steps(old, step)
    start = laws.as_json(old.state_dict())

    def make(state: Any) -> Loader:
        loader = after.loader()
        loader.load_state_dict(state, before=before.packer())
        return loader

    whole, states, expected = make(start), [start], []
    for batch in whole:
        expected.append(laws.samples(batch))
        states.append(laws.as_json(whole.state_dict()))
        if len(states) > 12:
            break
    for cut, state in enumerate(states[:-1]):
        resumed = make(state)
        assert resumed.state_dict() == state or cut == 0
        more = min(2, 12 - cut)
        assert _steps(resumed, more) == expected[cut : cut + more]
        assert laws.as_json(resumed.state_dict()) == states[cut + more]
        if "before_edit" not in json.dumps(state) and cut:
            alone = after.loader()
            alone.load_state_dict(state)
            assert _steps(alone, 1) == expected[cut : cut + 1]


def test_any_ranks_and_workers_go_on_behind_an_edit() -> None:
    options: dict[str, Any] = {"lanes_per_step": 4, "lane_groups": 2, "global_batch_size": 8}
    _, whole = _edited(3, **options)
    old = BEFORE.loader(**options)
    _steps(old, 3)
    state = laws.as_json(old.state_dict())

    def make(leg: laws.Leg, dp: Shard) -> Loader:
        loader = AFTER.loader(dp=dp, workers=leg.workers, start_method="fork", **options)
        loader.load_state_dict(state, before=BEFORE.packer())
        return loader

    expected = _steps(whole, 6)
    for leg in (laws.Leg(4, 6), laws.Leg(2, 6, workers=2), laws.Leg(1, 6, workers=1)):
        parts = [_steps(make(leg, Shard(rank, leg.ranks)), 6) for rank in range(leg.ranks)]
        assert [[pack for part in step for pack in part] for step in zip(*parts, strict=True)] == expected


def test_second_edit_waits_for_the_first() -> None:
    _, loader = _edited(5)
    _steps(loader, 1)
    again = replace(AFTER, weights=(1.0, 1.0, 1.0, 1.0))
    third = again.loader()
    with pytest.raises(StateError, match=r"last edit of the mix is not in force on lane \d.* yet; train on with it"):
        third.load_state_dict(loader.state_dict(), before=AFTER.packer())
    _steps(loader, 20)
    third.load_state_dict(loader.state_dict(), before=AFTER.packer())
    _steps(third, 20)
    assert [edit["step"] for edit in third.state_dict()["edits"]] == [5, 26]


def test_state_of_an_open_edit_needs_the_mix_before_it() -> None:
    _, loader = _edited(5)
    _steps(loader, 1)
    state = loader.state_dict()
    with pytest.raises(StateError, match="open windows of the mix before an edit: load it with that mix as `before`"):
        AFTER.loader().load_state_dict(state)
    other = replace(BEFORE, weights=(1.0, 1.0, 1.0, 7.0))
    with pytest.raises(StateError, match=r"sources.changed.weight, .*: 0.2 in the state, 0.7 here"):
        AFTER.loader().load_state_dict(state, before=other.packer())


@pytest.mark.parametrize(
    ("change", "line"),
    [({"seed": 1}, "seed: 0 in the state, 1 here"),
     ({"sequence_length": 13}, "sequence_length: 12 in the state, 13 here"),
     ({"lookahead": 8}, "packing.lookahead: 7 in the state, 8 here"),
     ({"overflow": "drop"}, "packing.overflow: 'truncate' in the state, 'drop' here"),
     ({"unit": "tokens"}, "mix.unit: 'samples' in the state, 'tokens' here")],
)  # fmt: skip
def test_only_sources_and_weights_can_be_edited(change: dict[str, Any], line: str) -> None:
    old = BEFORE.loader()
    _steps(old, 2)
    with pytest.raises(StateError, match=f"only sources and weights can change .*\n  {line}"):
        replace(AFTER, **change).loader().load_state_dict(old.state_dict(), before=BEFORE.packer())


def test_edit_is_not_made_without_saying_so() -> None:
    old = BEFORE.loader()
    _steps(old, 2)
    with pytest.raises(StateError, match=r"another stream:\n(.*\n)*  mix.sources.added: here, not in the state"):
        AFTER.loader().load_state_dict(old.state_dict())
    with pytest.raises(StateError, match=r"sources.kept.weight, .*: .* in the state, .* here"):
        AFTER.loader().load_state_dict(old.state_dict(), before=AFTER.packer())


@pytest.mark.parametrize("change", [{"window": 5}, {"block_bytes": 64}, {"shuffle": False}])
def test_streaming_source_that_is_shuffled_otherwise_is_another_source(change: dict[str, Any]) -> None:
    """Its blocks hold other rows, so a position in them means nothing there."""

    def mix(shards: Shards) -> StreamedMix:
        return StreamedMix(shards={"a": shards, "b": Shards()}, weights=(1.0, 1.0))

    shards = Shards(refused=0, plain=True)
    before, after = mix(shards), mix(replace(shards, **change))
    old = before.loader()
    _steps(old, 6)
    with pytest.raises(StateError, match=r"sources\.a[.:].* in the state, .* here"):
        after.loader().load_state_dict(old.state_dict())
    loader = after.loader()
    loader.load_state_dict(old.state_dict(), before=before.packer())
    steps = _steps(loader, 40)
    found = [seen for packs in steps for pack in packs for seen in pack if seen.source == "a"]
    again = {(seen.row, seen.start) for seen in found if seen.pass_index == 0}
    (rows, _) = after.rows()
    assert again == {(seen.row, seen.start) for seen in rows.all}, "it went on where the other one stood"
