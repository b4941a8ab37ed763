"""The keys of a config file that say how row groups are read and kept; and what all sections have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from streamsft.config_values import PathText, Positive, Size

__all__ = ["IoConfig", "Section", "TierConfig"]


class Section(BaseModel):
    """A section of a config: strict types, no unknown keys, each key told of by the text behind it."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, protected_namespaces=()
    )


class TierConfig(Section):
    """Where row groups are kept on the local disk."""

    dir: PathText
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
