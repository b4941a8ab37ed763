"""The keys of a config file that say where rows come from, and how row groups are read and kept; and what all sections
have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from streamsft.config_values import FolderText, Paths, Positive, Size, TextOrList, TrainOn

__all__ = ["IoConfig", "Rows", "Section", "TierConfig"]


Format = Literal[
    "messages", "sharegpt", "alpaca", "prompt_completion", "question_answer", "preference", "text", "tokens"
]
Overflow = Literal["truncate", "drop", "split", "error"]


class Section(BaseModel):
    """A section of a config: strict types, no unknown keys, each key told of by the text behind it."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, protected_namespaces=()
    )


class TierConfig(Section):
    """Where row groups are kept on the local disk."""

    dir: FolderText
    """A folder for them alone; workers, ranks and jobs may share it."""
    budget: Size
    """Bytes that its files may take, such as 32GiB. Those used longest ago are removed when there is no room."""
    whole: bool = False
    """Fetch the whole store before training begins; it must fit the budget."""


class IoConfig(Section):
    """How a process reads row groups."""

    memory: Size = 1 << 30
    """Bytes of decoded row groups that are kept."""
    prefetch: Size = 256 << 20
    """Bytes of decoded row groups that are fetched before they are needed; 0: none."""
    deadline: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120.0
    """Seconds for which a read that fails is tried again."""
    requests: Positive = 16
    """Row groups that are fetched at a time."""


class Rows(Section):
    """Where the rows of a source come from, and how they become tokens."""

    path: Paths | None = None
    """Files: a file, a glob, a directory, an address such as s3://bucket/chats/*.jsonl, or a list of them."""
    store: Paths | None = None
    """A token store: a directory written by `streamsft tokenize` or `save_to_disk`; .arrow, .parquet, .jsonl or .json
    files (a file, a glob, a directory, a list) with input_ids and loss_mask or labels; or an address of Parquet files,
    such as s3://bucket/folder. Read where it lies."""
    hub: str | None = None
    """A dataset of the Hugging Face hub, as owner/name."""
    config: str | None = None
    """With `hub`: the dataset's configuration."""
    split: str | None = None
    """With `hub`: the split; by default train."""
    revision: str | None = None
    """With `hub`: a branch, a tag or a commit."""
    data_files: TextOrList | None = None
    """With `hub`: only these files of the dataset."""
    format: Format | None = None
    """How a row holds its conversation; by default detected from the first rows. preference: it holds two answers to
    one prompt, see docs/preference.md. text: it holds plain text, all of which is trained on. tokens: it is tokenized
    already."""
    columns: dict[str, str] | None = None
    """What the format's fields are called in this data: field of the format → column."""
    train_on: TrainOn = "assistant"
    """Which messages are supervised."""
    overflow: Overflow | None = None
    """What happens to a sample longer than `sequence_length`; by default as `packing.overflow` says, and with `format:
    text` it is split. Preference pairs are never cut: they are dropped, or it is an error."""
    on_bad_row: Literal["skip", "error"] = "skip"
    """Skip and count a row that cannot be used, or stop at it."""

    @property
    def overflows(self) -> Overflow | None:
        """What happens to its samples that are too long, if that is not what `packing.overflow` says."""
        return "split" if self.overflow is None and self.format == "text" else self.overflow
