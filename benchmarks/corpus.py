"""Chat files of any size, made of the documentation that every Python brings along: real English and code."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path

MODULES = """
abc argparse array ast asyncio base64 bisect calendar collections concurrent.futures configparser contextlib copy csv
ctypes datetime decimal difflib dis doctest email enum fractions functools gzip hashlib heapq hmac html http.client
imaplib inspect io ipaddress itertools json logging lzma mailbox math mimetypes multiprocessing numbers operator os
pathlib pdb pickle platform plistlib pprint queue random re sched selectors shutil signal smtplib socket sqlite3 ssl
statistics string struct subprocess tarfile tempfile textwrap threading timeit tkinter tokenize traceback types typing
unittest urllib.request uuid venv warnings wave weakref xml.dom.minidom xml.etree.ElementTree zipfile
"""
MOST = 4_000  # characters of one answer


def passages() -> list[tuple[str, str]]:
    """(name, documentation) of the public classes and functions of the standard library, in a fixed order."""
    found: dict[str, str] = {}
    for name in MODULES.split():
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        found[name] = inspect.getdoc(module) or ""
        for key, value in sorted(vars(module).items()):
            if key.startswith("_") or not callable(value):
                continue
            found[f"{name}.{key}"] = inspect.getdoc(value) or ""
            members = sorted(vars(value).items()) if inspect.isclass(value) else []
            found |= {f"{name}.{key}.{k}": inspect.getdoc(m) or "" for k, m in members if k[0] != "_" and callable(m)}
    return [(name, text[:MOST]) for name, text in found.items() if len(text) > 40]


def conversations() -> Iterator[str]:
    """Chats in the messages format, one JSON line each, without end and without repeats."""
    known = passages()
    number = 0
    while True:
        messages = []
        for turn in range(1 + number % 3):
            # Strides that share no factor with each other keep meeting new pairs of passages.
            name, text = known[(number * 7919 + turn * 104_729 + number // len(known)) % len(known)]
            messages += [
                {"role": "user", "content": f"What does `{name}` do? This is question {number}."},
                {"role": "assistant", "content": text},
            ]
        yield json.dumps({"messages": messages}) + "\n"
        number += 1


def write(path: Path, size: int) -> None:
    """Write chats until the file has about `size` bytes."""
    written = 0
    with path.open("w") as file:
        for line in conversations():
            file.write(line)
            written += len(line)
            if written >= size:
                return


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(float(sys.argv[2]) * 1e6))
