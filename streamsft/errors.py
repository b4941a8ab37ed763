"""The exceptions that streamsft raises for its users.

::

    StreamsftError(ValueError)
    ├── ConfigError          a config file, an override or an argument is wrong
    ├── DataError            a file or a row cannot be used; says source, file and row
    │   ├── EmptySourceError a source has no row that could be drawn
    │   └── StoreError       a token store is incomplete, corrupt or foreign
    ├── TokenizerError       the tokenizer or its chat template cannot be used
    ├── StateError           a stream's state cannot be taken or loaded
    ├── MetricError          a metric is declared twice, or differs between ranks
    ├── RunError             a run directory cannot be used, or training cannot go on
    └── CommError            ranks disagree, or one of them failed

Every message says where, what, and what to do about it. Each exception is built from its message
alone, so that it survives the way back from a worker process unchanged.
"""

from __future__ import annotations

__all__ = [
    "CommError",
    "ConfigError",
    "DataError",
    "EmptySourceError",
    "MetricError",
    "RunError",
    "StateError",
    "StoreError",
    "StreamsftError",
    "TokenizerError",
]


class StreamsftError(ValueError):
    """Base of everything that streamsft raises for its users.

    Attributes:
        shared: whether every rank raises it (see `streamsft.comm.agree`), so that one of them may tell it for all.
    """

    shared: bool = False


class ConfigError(StreamsftError):
    """A config file, an override or an argument is wrong."""


class DataError(StreamsftError):
    """A file or a row cannot be used."""


class EmptySourceError(DataError):
    """A source has no row that could be drawn."""


class StoreError(DataError):
    """A token store is incomplete, corrupt, or was made by another tokenizer."""


class TokenizerError(StreamsftError):
    """The tokenizer or its chat template cannot be used."""


class StateError(StreamsftError):
    """A stream's state cannot be taken or loaded."""


class MetricError(StreamsftError):
    """A metric is declared twice, or its layout differs between ranks."""


class RunError(StreamsftError):
    """A run directory cannot be used, or training cannot go on."""


class CommError(StreamsftError):
    """Ranks disagree, or one of them failed."""
