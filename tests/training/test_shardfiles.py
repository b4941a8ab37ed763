"""The storage of divided tensors: what is written is read, and nothing in it can be run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from streamsft.training.shardfiles import INDEX, ShardReader, ShardWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


def tensors() -> dict[str, Any]:
    whole = torch.arange(24.0).reshape(4, 6)
    return {
        "model/a": whole,
        "model/transposed": whole.T,
        "model/tied": whole[1:3],
        "model/empty": torch.zeros(0, 3),
        "optimizer/a/step": torch.tensor(7.0),
        "model/half": torch.ones(3, dtype=torch.bfloat16),
        "model/flags": torch.tensor([True, False]),
        "model/counts": torch.tensor([1 << 40]),
    }


def written(folder: Path, state: dict[str, Any]) -> list[str]:
    done: list[str] = []
    save(dict(state), storage_writer=ShardWriter(folder, rank=0, done=lambda digests: done.extend(digests)))
    return done


def test_what_is_written_is_read(tmp_path: Path) -> None:
    state = tensors()
    assert written(tmp_path, state) == ["rank-00000.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [INDEX, "rank-00000.safetensors"]
    again = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load(again, storage_reader=ShardReader(tmp_path))
    for name, tensor in state.items():
        assert torch.equal(again[name], tensor), name


def test_only_tensors_are_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException, match=r"model/note\S* is no tensor; only tensors are written"):
        written(tmp_path, {"model/a": torch.ones(2), "model/note": {"any": "object"}})
    assert not (tmp_path / INDEX).exists()


def test_only_tensors_are_read(tmp_path: Path) -> None:
    written(tmp_path, {"model/a": torch.ones(2)})
    with pytest.raises(CheckpointException):
        load({"model/a": "text"}, storage_reader=ShardReader(tmp_path))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda index: index.update(version=2), "its version is not 1"),
        (lambda index: index["tensors"]["model/a"].update(dtype="save"), "model/a has dtype 'save'"),
        (lambda index: index["tensors"]["model/a"].update(dtype="no_such"), "an entry of it is damaged"),
        (lambda index: index["tensors"]["model/a"].pop("shape"), "an entry of it is damaged"),
        (lambda index: index["tensors"]["model/a"]["parts"][0].update(file="../rank-00000.safetensors"), "a part in"),
        (lambda index: index["tensors"]["model/a"]["parts"][0].update(offset="x"), "an entry of it is damaged"),
    ],
)
def test_an_index_that_is_damaged_is_refused(tmp_path: Path, change: Any, expected: str) -> None:
    written(tmp_path, {"model/a": torch.ones(2)})
    index = json.loads((tmp_path / INDEX).read_text())
    change(index)
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=expected):
        ShardReader(tmp_path)


def test_a_file_that_is_cut_short_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, {"model/a": torch.ones(200)})
    path = tmp_path / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointException) as caught:
        load({"model/a": torch.zeros(200)}, storage_reader=ShardReader(tmp_path))
    assert isinstance(caught.value.failures[0][0], SafetensorError)
