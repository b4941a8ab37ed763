"""An error that comes long after the config was read still says where in the file the key is that it is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamsft.config_origin import pointing
from streamsft.errors import ConfigError, DataError, StreamsftError

TEXT = """\
seed: 7
tokenizer: there
mix:
  sources:
    a.b: {path: a.jsonl, weight: 1}
    group:
      weight: 1
      sources:
        inner:
          hub: some/where
          weight: 2
loader: {global_batch_size: 8}
train:
  run_dir: runs/first
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(TEXT)
    return file


def notes(config: object, error: StreamsftError, **options: object) -> list[str]:
    @pointing
    def command(config: object, *, overrides: object = ()) -> None:
        raise error

    with pytest.raises(StreamsftError) as caught:
        command(config, **options)  # type: ignore[arg-type]
    assert caught.value is error
    return [note.strip() for note in getattr(error, "__notes__", ())]


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (
            ConfigError("dp size 3 does not divide loader.global_batch_size 8; take 1, 2"),
            "12: loader.global_batch_size",
        ),
        (ConfigError("train.steps: missing: training needs it"), "13: train"),
        (ConfigError("tokenizer: there: no such folder"), "2: tokenizer"),
        (ConfigError("rank 1: tokenizer: there: no such folder"), "2: tokenizer"),
        (ConfigError("these differ:\n  seed: 7 in the state, 8 here"), "1: seed"),
        (ConfigError("these differ:\n  tokenizer, by a digest of it: 'a' here"), "2: tokenizer"),
        (DataError("source inner: a row is too long"), "10: mix.sources.group.sources.inner.hub"),
        (DataError("source 'a.b', a.jsonl:3: too long"), "5: mix.sources.a.b.path"),
        (ConfigError("mix.sources.a.b.weight: 1 in the run, 2 here"), "5: mix.sources.a.b.weight"),
    ],
)
def test_the_key_is_found_that_a_message_names(file: Path, error: StreamsftError, place: str) -> None:
    assert notes(file, error) == [f"{file}:{place}"]
    assert notes(str(file), type(error)(*error.args)) == [f"{file}:{place}"]


def test_every_source_that_is_named_is_found_once(file: Path) -> None:
    error = DataError("2 sources cannot be read:\n  source inner: x\n  source a.b: y\n  source a.b: z")
    assert notes(file, error) == [f"{file}:10: mix.sources.group.sources.inner.hub", f"{file}:5: mix.sources.a.b.path"]


def test_an_override_is_named_instead_of_a_line(file: Path) -> None:
    error = ConfigError("tokenizer: here: no such folder")
    assert notes(file, error, overrides=["tokenizer=here"]) == ["given as tokenizer=here"]


@pytest.mark.parametrize(
    "message", ["rows.jsonl:3: bad", "source other: bad", "the train.py file", "mix: bad", "a/train.steps/b"]
)
def test_nothing_is_added_where_no_key_is_named(file: Path, message: str) -> None:
    assert notes(file, DataError(message)) == []


def test_nothing_is_added_without_a_readable_file(tmp_path: Path, file: Path) -> None:
    assert notes({"tokenizer": "there"}, ConfigError("tokenizer: wrong")) == []
    assert notes(tmp_path / "none.yaml", ConfigError("tokenizer: wrong")) == []
    assert notes(file, ConfigError(f"{file}: 1 thing is wrong\n  {file}:1: seed: x")) == []
