import errno
import os
from pathlib import Path

import pytest

from streamsft.errors import RunError
from streamsft.training.checkpoint import Checkpoints

FINGERPRINT = {"seed": 7, "sources": {"a": ["ab12", 0.5]}}


def fill(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_bytes(b"w" * 1000)
    (folder / "loader.json").write_text("{}")


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


@pytest.mark.parametrize("latest", [None, "", "step-00000900\n", "../../etc\n"])
def test_without_a_usable_latest_the_highest_step_counts(tmp_path: Path, latest: str | None) -> None:
    save(tmp_path, 50)
    save(tmp_path, 100)
    path = tmp_path / "checkpoints" / "latest"
    if latest is None:
        path.unlink()
    else:
        path.write_text(latest)
    stored = Checkpoints(tmp_path).newest()
    assert stored is not None
    assert stored.step == 100


def test_a_cut_or_missing_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    save(tmp_path, 50)
    path = save(tmp_path, 100)
    (path / "model" / "weights").write_bytes(b"w" * 999)
    with pytest.raises(RunError, match=r"step-00000100 is damaged: model/weights .*go on from step-00000050"):
        Checkpoints(tmp_path).newest()
    (path / "manifest.json").write_text('{"version": 1')
    with pytest.raises(RunError, match="manifest cannot be read"):
        Checkpoints(tmp_path).newest()


def test_a_full_disk_leaves_the_older_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path, 50)

    def full(folder: Path) -> None:
        fill(folder)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunError, match=r"No space left on device \(.*nothing of it was published"):
        Checkpoints(tmp_path).write(100, full, fingerprint=FINGERPRINT, model="none")
    assert names(tmp_path) == ["latest", "step-00000050"]
