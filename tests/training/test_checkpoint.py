import errno
import json
import os
from pathlib import Path

import pytest

from streamsft.errors import RunError
from streamsft.training import checkpoint
from streamsft.training.checkpoint import Checkpoints
from tests.training.runs import resealed

FINGERPRINT = {"seed": 7, "sources": {"a": ["ab12", 0.5]}}


def fill(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_bytes(b"w" * 1000)
    for name in ("loader.json", "trainer.json"):
        (folder / name).write_text(json.dumps({"step": int(folder.name[-9:].removeprefix("-"))}))


def save(run_dir: Path, step: int, keep: int = 2) -> Path:
    checkpoints = Checkpoints(run_dir)
    partial = checkpoints.write(step, fill, fingerprint=FINGERPRINT, model="none")
    return checkpoints.publish(partial, step, keep=keep)


def names(run_dir: Path) -> list[str]:
    return sorted(os.listdir(run_dir / "checkpoints"))


def test_the_newest_are_kept_and_the_last_is_found(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).newest() is None
    for step in (50, 100, 150):
        save(tmp_path, step)
    assert names(tmp_path) == ["latest", "step-00000100", "step-00000150"]
    stored = Checkpoints(tmp_path).newest()
    assert stored is not None
    assert (stored.step, stored.path.name, stored.fingerprint, stored.model) == (
        150,
        "step-00000150",
        FINGERPRINT,
        "none",
    )


def test_steps_beyond_eight_digits_sort_by_number(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000):
        save(tmp_path, step, keep=1)
    assert names(tmp_path) == ["latest", "step-100000000"]


def test_what_was_killed_half_way_is_ignored_and_cleaned(tmp_path: Path) -> None:
    save(tmp_path, 50)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(100, fill, fingerprint=FINGERPRINT, model="none")  # killed before its name was given
    (tmp_path / "checkpoints" / ".partial-latest").write_text("step")
    (tmp_path / "checkpoints" / ".partial-step-00000025" / "model").mkdir(parents=True)  # killed while being removed
    stored = checkpoints.newest()
    assert stored is not None
    assert stored.step == 50
    checkpoints.clean(after=50, keep=2)
    assert names(tmp_path) == ["latest", "step-00000050"]


def test_killed_before_latest_was_replaced_the_older_one_counts(tmp_path: Path) -> None:
    save(tmp_path, 50)
    save(tmp_path, 100)
    (tmp_path / "checkpoints" / "latest").write_text("step-00000050\n")
    stored = Checkpoints(tmp_path).newest()
    assert stored is not None
    assert stored.step == 50
    Checkpoints(tmp_path).clean(after=50, keep=2)
    assert names(tmp_path) == ["latest", "step-00000050"]
    save(tmp_path, 100)
    assert names(tmp_path) == ["latest", "step-00000050", "step-00000100"]


def test_the_step_that_is_gone_on_from_is_told_where_latest_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 50)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "write_file", full)
    with pytest.raises(RunError, match=r"could not be published: .*: the run goes on from step 50"):
        save(tmp_path, 100)
    stored = Checkpoints(tmp_path).newest()
    assert stored is not None
    assert stored.step == 50


@pytest.mark.parametrize("latest", [None, b"", b"step-00000900\n", b"../../etc\n", b"\xff\xfe", "directory"])
def test_without_a_usable_latest_the_highest_step_counts(tmp_path: Path, latest: bytes | str | None) -> None:
    save(tmp_path, 50)
    save(tmp_path, 100)
    path = tmp_path / "checkpoints" / "latest"
    path.unlink()
    if isinstance(latest, bytes):
        path.write_bytes(latest)
    elif latest is not None:
        path.mkdir()
        (path / "file").touch()
    stored = Checkpoints(tmp_path).newest()
    assert stored is not None
    assert stored.step == 100
    save(tmp_path, 150)
    assert path.read_text() == "step-00000150\n"


def test_a_link_as_latest_counts(tmp_path: Path) -> None:
    older, _ = save(tmp_path, 50), save(tmp_path, 100)
    latest = tmp_path / "checkpoints" / "latest"
    latest.unlink()
    latest.symlink_to(older, target_is_directory=True)
    stored = Checkpoints(tmp_path).newest()
    assert stored is not None
    assert stored.step == 50
    Checkpoints(tmp_path).clean(after=50, keep=2)
    save(tmp_path, 100)
    assert older.is_dir()
    assert latest.read_text() == "step-00000100\n"


def test_a_cut_or_missing_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    save(tmp_path, 50)
    path = save(tmp_path, 100)
    (path / "model" / "weights").write_bytes(b"w" * 999)
    with pytest.raises(RunError, match=r"step-00000100 is damaged: model/weights .*go on from step-00000050"):
        Checkpoints(tmp_path).newest()
    (path / "manifest.json").write_text('{"version": 1')
    with pytest.raises(RunError, match="manifest cannot be read"):
        Checkpoints(tmp_path).newest()


def test_a_manifest_that_changed_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 50)
    manifest = save(tmp_path, 100) / "manifest.json"
    manifest.write_text(manifest.read_text().replace("ab12", "ab13"))
    with pytest.raises(RunError, match=r"manifest.json changed since it was written .*go on from step-00000050"):
        Checkpoints(tmp_path).newest()


def test_checkpoints_of_the_format_before_are_refused_by_version(tmp_path: Path) -> None:
    manifest = save(tmp_path, 50) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 1}))
    with pytest.raises(RunError, match=r"has format version 1; this streamsft reads 2: .* or start over with --fresh"):
        Checkpoints(tmp_path).newest()


@pytest.mark.parametrize("name", ["manifest.json", "trainer.json", "loader.json", "its name"])
def test_files_of_different_steps_are_refused(tmp_path: Path, name: str) -> None:
    save(tmp_path, 50)
    path = save(tmp_path, 100)
    if name == "its name":
        path = path.rename(path.with_name("step-00000200"))
    else:
        if name != "manifest.json":
            (path / name).write_text('{"step": 101}')
        resealed(path, step=101 if name == "manifest.json" else None)
    with pytest.raises(RunError, match=rf"different steps \(.*10\d by {name}|200 by its name") as caught:
        Checkpoints(tmp_path).read(path.name)
    assert caught.match(r"; remove .* to go on from step-00000050")


def test_each_of_several_ranks_checks_a_part_of_the_files(tmp_path: Path) -> None:
    path = save(tmp_path, 50)
    (path / "model" / "weights").write_bytes(b"v" * 1000)
    stored = Checkpoints(tmp_path).newest()
    assert stored is not None
    told = []
    for part in range(4):
        try:
            stored.check_content(part, 4)
        except RunError as error:
            told.append(str(error))
    assert len(told) == 1
    assert "model/weights changed since it was written" in told[0]
    assert told[0].endswith("start over with --fresh")


def test_a_full_disk_leaves_the_older_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path, 50)

    def full(folder: Path) -> None:
        fill(folder)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunError, match=r"No space left on device \(.*nothing of it was published"):
        Checkpoints(tmp_path).write(100, full, fingerprint=FINGERPRINT, model="none")
    assert names(tmp_path) == ["latest", "step-00000050"]
