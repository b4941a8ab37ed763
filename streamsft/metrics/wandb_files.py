"""What W&B's own files hold: a LevelDB log of protocol buffers, which `wandb sync` sends."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["last_step"]

_HEADER = 7  # bytes, of the file as of each part of a record
_BLOCK = 32768
_WHOLE, _LAST = 1, 4
_PART = struct.Struct("<IHB")  # checksum, length, kind


def last_step(path: Path) -> int:
    """The last step of which a file ``run-<id>.wandb`` holds a record, 0 if of none.

    A record that is not there whole, as a process leaves it that is killed, does not count, nor what is behind it.
    """
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    protocol: Any = wandb_internal_pb2  # made at import, so that nothing knows what is in it
    last = 0
    for data in _records(path.read_bytes()):
        record = protocol.Record()
        try:
            record.ParseFromString(data)
        except DecodeError:
            break
        if record.WhichOneof("record_type") == "history":
            named = [json.loads(item.value_json) for item in record.history.item if item.key == "_step"]
            last = max([last, record.history.step.num, *map(int, named)])
    return last


def _records(data: bytes) -> Iterator[bytes]:
    """The whole records of a LevelDB log: blocks of 32 KiB, with parts of records that do not cross them."""
    at, record = _HEADER, b""
    while at + _HEADER <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = _PART.unpack_from(data, at)
        at += _HEADER
        if not kind or at + length > len(data):
            return
        record += data[at : at + length]
        at += length
        if kind in (_WHOLE, _LAST):
            yield record
            record = b""
