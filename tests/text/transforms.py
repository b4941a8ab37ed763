"""Functions that tests give to tokenize; in a module of their own, so that worker processes can import them."""

from __future__ import annotations

import os
import signal
from typing import Any


def characters(row: dict[str, Any]) -> dict[str, list[int]] | None:
    """Tokens are the characters of `text`; all behind the first are supervised. Rows without text are left out."""
    text = row.get("text")
    if not isinstance(text, str):
        return None
    return {"input_ids": [ord(c) for c in text], "loss_mask": [0] + [1] * (len(text) - 1) if text else []}


def failing(row: dict[str, Any]) -> dict[str, list[int]]:
    """Fails on the row whose `n` is 3."""
    if row["n"] == 3:
        raise KeyError("no such thing")
    return {"input_ids": [1, 2], "loss_mask": [0, 1]}


def killing(row: dict[str, Any]) -> dict[str, list[int]]:
    """Dies on the row whose `n` is 3, as if the system had run out of memory."""
    if row["n"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"input_ids": [1, 2], "loss_mask": [0, 1]}


class Scaled:
    """A function with a setting."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, row: dict[str, Any]) -> dict[str, list[int]]:
        return {"input_ids": [row["n"] * self.factor, 1], "loss_mask": [0, 1]}


def slowly(row: dict[str, Any]) -> dict[str, list[int]] | None:
    """`characters`, but tells of its first row and then waits to be killed at the tenth."""
    if row["text"] == "row 0":
        print("started", flush=True)
    if row["text"] == "row 10":
        signal.pause()
    return characters(row)


class KillingWhile:
    """`characters`, but while a file is there, the process dies on rows that begin with an x."""

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def __call__(self, row: dict[str, Any]) -> dict[str, list[int]] | None:
        if row["text"].startswith("x") and os.path.exists(self.flag):
            os.kill(os.getpid(), signal.SIGKILL)
        return characters(row)


def nothing(row: dict[str, Any]) -> bool:
    """A filter that leaves every row out."""
    return False
