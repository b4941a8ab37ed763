"""Row groups on the local disk."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streamsft.errors import ConfigError
from streamsft.sources.blockrows import DecodedBlock
from streamsft.sources.grouptier import DiskTier, Tier
from tests.processes import start


def block(tokens: int = 1000, seed: int = 0, note: bool = False) -> DecodedBlock:
    numbers = np.random.default_rng(seed)
    bounds = np.array([0, 3, 3, tokens], np.int64)
    carried = pa.record_batch({"note": ["a", None, "c"]}) if note else None
    ids = numbers.integers(0, 99, tokens).astype(np.int32)
    return DecodedBlock(ids=ids, mask=numbers.integers(0, 2, tokens).astype(np.bool_), bounds=bounds, carried=carried)


def same(one: DecodedBlock | None, other: DecodedBlock) -> bool:
    return one is not None and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("ids", "mask", "bounds")
    )


def test_what_is_put_is_got_from_the_file(tmp_path: Path) -> None:
    tier = DiskTier(Tier(dir=tmp_path / "t", budget=1 << 20))
    kept = tier.put("a.arrow", block(note=True))
    assert same(kept, block())
    assert not kept.ids.flags.writeable, "it is mapped"
    found = DiskTier(Tier(dir=tmp_path / "t", budget=1 << 20)).get("a.arrow")
    assert same(found, block())
    assert found.carried.to_pydict() == {"note": ["a", None, "c"]}
    assert tier.get("b.arrow") is None


def test_names_tell_contents_apart(tmp_path: Path) -> None:
    tier = DiskTier(Tier(dir=tmp_path, budget=1))
    contents = [["p", 1, "v", 0, []], ["p", 1, "w", 0, []], ["p", 1, "v", 1, []], ["q", 1, "v", 0, []]]
    assert len({tier.name(content) for content in contents}) == 4


def test_the_files_used_longest_ago_make_room_down_to_90_percent(tmp_path: Path) -> None:
    size = _size(tmp_path / "probe")
    tier = DiskTier(Tier(dir=tmp_path / "t", budget=10 * size))
    for number in range(10):
        tier.put(f"{number}.arrow", block(seed=number))
        os.utime(tier.folder / f"{number}.arrow", (number, number))
    assert tier.get("0.arrow") is not None  # used now
    tier.put("10.arrow", block(seed=10))
    assert sorted(int(file.stem) for file in tier.folder.glob("[0-9]*")) == [0, 3, 4, 5, 6, 7, 8, 9, 10]
    assert tier.used() <= 0.9 * tier.budget


def test_many_writers_stay_within_the_budget(tmp_path: Path) -> None:
    size = _size(tmp_path / "probe")
    tiers = [DiskTier(Tier(dir=tmp_path / "t", budget=20 * size)) for _ in range(2)]
    most = []

    def put(number: int) -> None:
        tiers[number % 2].put(f"{number}.arrow", block(seed=number))
        most.append(tiers[0].used())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(200)))
    assert max(most) <= 1.05 * tiers[0].budget
    assert tiers[0].used() > 0.5 * tiers[0].budget


def write_until_killed(folder: str) -> None:
    def hang(_: int) -> None:
        print("half written", flush=True)
        signal.pause()

    os.fsync = hang
    DiskTier(Tier(dir=folder, budget=1 << 20)).put("killed.arrow", block())


def test_what_a_killed_process_was_writing_is_removed_and_not_what_another_writes(tmp_path: Path) -> None:
    writer = start(write_until_killed, str(tmp_path / "t"))
    assert writer.readline() == "half written\n"
    size = _size(tmp_path / "probe")

    def keep(name: str) -> int:
        tier = DiskTier(Tier(dir=tmp_path / "t", budget=1 << 20))
        assert same(tier.put(name, block()), block())
        assert tier.used() == sum(file.stat().st_size for file in tier.folder.glob("*arrow*"))
        return len(list(tier.folder.glob(".*.tmp-*")))

    assert keep("a.arrow") == 1
    writer.process.kill()
    assert writer.end().returncode == -signal.SIGKILL
    assert keep("b.arrow") == 0
    assert DiskTier(Tier(dir=tmp_path / "t", budget=1)).used() == 2 * size


def test_a_group_larger_than_the_budget_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = DiskTier(Tier(dir=tmp_path / "t", budget=100))
    assert tier.put("a.arrow", block()) is None
    assert tier.put("b.arrow", block()) is None
    assert len(caplog.records) == 1
    assert "larger than tier.budget" in caplog.text
    assert tier.used() == 0


def test_a_folder_that_cannot_be_written_to_costs_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    tier = DiskTier(Tier(dir=tmp_path / "file" / "t", budget=1 << 20))
    assert tier.put("a.arrow", block()) is None
    assert "could not be kept" in caplog.text


def test_a_damaged_file_is_removed(tmp_path: Path) -> None:
    tier = DiskTier(Tier(dir=tmp_path, budget=1 << 20))
    tier.put("a.arrow", block())
    data = (tmp_path / "a.arrow").read_bytes()
    flipped = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(0, len(data), 17)]
    for damaged in (b"", data[:5], data[: len(data) // 2], data[:-1], *flipped):
        (tmp_path / "a.arrow").write_bytes(damaged)
        assert tier.get("a.arrow") is None
        assert not (tmp_path / "a.arrow").exists()


def test_a_removed_file_stays_readable_where_it_is_mapped(tmp_path: Path) -> None:
    tier = DiskTier(Tier(dir=tmp_path, budget=1 << 20))
    kept = tier.put("a.arrow", block())
    tier.discard("a.arrow")
    assert same(kept, block())


@pytest.mark.parametrize("budget", [0, -1, True, "1GiB"])
def test_a_budget_is_a_number_of_bytes(budget: object) -> None:
    with pytest.raises(ConfigError, match=r"tier\.budget"):
        Tier(dir="t", budget=budget)  # type: ignore[arg-type]


def _size(folder: Path) -> int:
    """Bytes of one file."""
    tier = DiskTier(Tier(dir=folder, budget=1 << 20))
    tier.put("a.arrow", block())
    return tier.used()


def test_a_fork_in_the_middle_keeps_nobody_out(tmp_path: Path) -> None:
    tier = DiskTier(Tier(dir=tmp_path / "t", budget=1 << 20))
    may_end = os.pipe()
    with tier._alone():
        pid = os.fork()
        if pid == 0:  # has the lock's file open as long as it lives
            os.read(may_end[0], 1)
            os._exit(0)
    try:
        with ThreadPoolExecutor(1) as pool:
            assert same(pool.submit(tier.put, "a.arrow", block()).result(timeout=60), block())
    finally:
        os.write(may_end[1], b"x")
        os.waitpid(pid, 0)
        for end in may_end:
            os.close(end)
