"""``streamsft init``: a first config for files of one's own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rich.console import Console

from streamsft.commands.console import make_console
from streamsft.commands.init_looking import Candidate, Look, candidates, look
from streamsft.commands.init_text import Proposal, config_text, proposed_length
from streamsft.commands.preview import preview
from streamsft.commands.validate import validate
from streamsft.errors import ConfigError, DataError
from streamsft.sources.paths import find_files
from streamsft.text.chat import ChatTokenizer

__all__ = ["NewConfig", "init"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NewConfig:
    """A config that was written.

    Attributes:
        path: where it is.
        sources: its sources, by name.
        left_out: files whose format is not known, or of which no row can be used, and why.
    """

    path: Path
    sources: dict[str, Proposal]
    left_out: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "config": str(self.path),
            "sources": {
                name: {
                    "path": one.candidate.path,
                    "format": one.look.format,
                    "rows": one.look.rows,
                    "weight": one.weight,
                }
                for name, one in self.sources.items()
            },
            "left_out": self.left_out,
        }


def init(
    folder: str | Path,
    *,
    data: Sequence[str | Path] = (),
    tokenizer: str | None = None,
    output: str | Path | None = None,
    sequence_length: int | None = None,
    check: bool = True,
    ask: bool = False,
    console: Console | None = None,
) -> NewConfig:
    """Look at data files, and write a config that trains on those whose format is known.

    The first rows of each file are tokenized, to propose formats, weights, a sequence length and a number of steps.
    The config is then validated, and the mix and a pack are shown. Nothing that is there is ever overwritten.

    Args:
        folder: where to look for data files, at any depth, unless `data` names them; and where the config is written.
        data: files, globs or folders.
        tokenizer: a tokenizer's folder, its hub id, or ``package:NAME``.
        output: where to write the config; by default ``streamsft.yaml`` in `folder`.
        sequence_length: slots per pack; by default a power of two that 99 of 100 of the rows looked at fit.
        check: validate the config and show a preview.
        ask: ask at the terminal for what is not given.
        console: where to print; standard output by default.

    Raises:
        ConfigError: the config is there already, or cannot be written; or there is no tokenizer.
        DataError: no file can be used; says why of each.
        StreamsftError: what can be mended otherwise.
    """
    console = console or make_console()
    folder = Path(folder)
    path = Path(output) if output is not None else folder / "streamsft.yaml"
    if path.exists():
        raise ConfigError(f"{path}: is there already, and is never overwritten; choose another place with --output")
    _check_place(path)
    data = list(data) or _asked_data(folder, ask=ask)
    tokenizer = tokenizer or _asked_tokenizer(ask=ask)
    found = candidates(find_files(list(data)))
    chat = ChatTokenizer(tokenizer)
    looks = [(candidate, look(candidate, chat)) for candidate in found]
    known = [(candidate, seen) for candidate, seen in looks if not seen.problem]
    unknown = [(candidate, seen) for candidate, seen in looks if seen.problem]
    if not known:
        reasons = "\n  ".join(f"{candidate.path}: {seen.problem}" for candidate, seen in unknown)
        raise DataError(f"init: none of {len(unknown)} files can be trained on as it is:\n  {reasons}")
    proposals = _proposals(known, named=list(data) != [folder])
    sequence_length = sequence_length or proposed_length([one.look for one in proposals if one.weight])
    text = config_text(proposals, unknown, tokenizer=tokenizer, sequence_length=sequence_length, folder=path.parent)
    _write(path, text)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)
    if check:
        validate(path, console=console)
        preview(path, packs=1, draws=1000, console=console)
    return NewConfig(
        path=path,
        sources={one.candidate.name: one for one in proposals},
        left_out={candidate.path: seen.problem for candidate, seen in unknown},
    )


def _proposals(known: Sequence[tuple[Candidate, Look]], *, named: bool) -> list[Proposal]:
    """Sources weighted by their rows; evaluation files that nobody named are not drawn, if there are others."""
    spare = not named and any(not candidate.evaluation for candidate, _ in known)
    return [
        Proposal(candidate=candidate, look=seen, weight=0 if spare and candidate.evaluation else seen.rows)
        for candidate, seen in known
    ]


def _asked_data(folder: Path, *, ask: bool) -> list[str | Path]:
    if not ask:
        return [folder]
    from rich.prompt import Prompt

    answer = Prompt.ask("Data files, globs or folders, separated by spaces", default=str(folder))
    return [folder] if answer == str(folder) else list(answer.split())


def _asked_tokenizer(*, ask: bool) -> str:
    if ask:
        from rich.prompt import Prompt

        if answer := Prompt.ask("Tokenizer: a folder, a hub id, or package:NAME"):
            return answer
    raise ConfigError("init: no tokenizer; give --tokenizer, a folder, a hub id, or package:NAME")


def _check_place(path: Path) -> None:
    """See that a file could be written there, before the rows are looked at."""
    place = next(parent for parent in path.absolute().parents if parent.exists())
    why = "is no folder" if not place.is_dir() else "cannot be written to"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: {place} {why}; choose another place with --output")


def _write(path: Path, text: str) -> None:
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
        file = path.open("x", encoding="utf-8")
        try:
            with file:
                file.write(text)
        except OSError:
            path.unlink()
            raise
    except FileExistsError as error:
        raise ConfigError(
            f"{path}: is there already, and is never overwritten; choose another with --output"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}; choose another place with --output") from error
