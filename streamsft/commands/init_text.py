"""The text of a new config: settings with what they are, and why they are proposed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from streamsft.commands.init_looking import Candidate, Look
from streamsft.text.preference import PREFERENCE

__all__ = ["Proposal", "config_text", "proposed_length", "proposed_steps"]

BATCH = 8
_SHORTEST, _LONGEST = 512, 8192


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A source of the new config.

    Attributes:
        candidate: its files.
        look: what its rows look like.
        weight: how often it is drawn; 0 leaves it out.
    """

    candidate: Candidate
    look: Look
    weight: int


def proposed_length(looks: Sequence[Look]) -> int:
    """Slots per pack that hold 99 of 100 of the rows looked at whole: a power of two from 512 to 8,192."""
    lengths = np.concatenate([np.array(look.lengths) for look in looks])
    wanted = int(np.quantile(lengths, 0.99, method="higher"))
    return min(_LONGEST, max(_SHORTEST, 1 << math.ceil(math.log2(max(2, wanted)))))


def proposed_steps(proposals: Sequence[Proposal], sequence_length: int) -> int:
    """Steps that go through every row about once."""
    tokens = sum(
        one.look.rows * float(np.minimum(one.look.lengths, sequence_length).mean()) for one in proposals if one.weight
    )
    return max(10, math.ceil(tokens / (BATCH * sequence_length)))


def config_text(
    proposals: Sequence[Proposal],
    unknown: Sequence[tuple[Candidate, Look]],
    *,
    tokenizer: str,
    sequence_length: int,
    folder: Path,
) -> str:
    """The config of sources, with comments, as YAML.

    Args:
        proposals: the sources.
        unknown: files of which none can be made, to be named with the reason.
        tokenizer: what the config names as its tokenizer.
        sequence_length: slots per pack.
        folder: where the config is to lie; what is below it is named relative to it.
    """
    return "\n".join(
        [
            "# A run of streamsft: check it with `streamsft validate`, look at it with `preview`, see what it will be",
            "# given with `forecast`, and start it with `train`, each followed by the path of this file.",
            "# ${CONFIG_DIR} is the folder of this file. All keys: streamsft's docs/config.md.",
            "seed: 0",
            *_length_lines(proposals, sequence_length),
            f"tokenizer: {_place(tokenizer, folder)}   # a folder, a hub id, or package:NAME",
            "mix:",
            "  # Weights are shares of draws, at any scale. These are numbers of rows, so that every row comes equally",
            "  # often; `streamsft forecast CONFIG --weights-for passes=3,NAME=1` finds others.",
            "  sources:",
            *(line for one in proposals for line in _source(one, folder)),
            *(line for candidate, look in unknown for line in _unknown(candidate, look)),
            "packing:",
            "  overflow: truncate   # a row longer than a pack is cut; or drop, split, error",
            "loader:",
            f"  global_batch_size: {BATCH}   # packs per step, over all ranks",
            "  micro_batch_size: 1    # packs per forward pass; raise it as memory allows",
            "train:",
            f"  steps: {proposed_steps(proposals, sequence_length)}   # about one pass over all rows",
            '  run_dir: "${CONFIG_DIR}/run"',
            *(
                ["  loss: dpo   # the rows are pairs of answers, see streamsft's docs/preference.md"]
                if _all_pairs(proposals)
                else []
            ),
            "  model: tiny   # a small Llama to try the data on; or a model's path, or none for the data alone",
            "  audit: true   # write which rows each step was given",
            "",
        ]
    )


def _all_pairs(proposals: Sequence[Proposal]) -> bool:
    return all(one.look.format == PREFERENCE for one in proposals if one.weight)


def _length_lines(proposals: Sequence[Proposal], sequence_length: int) -> Iterator[str]:
    longer = sum(length > sequence_length for one in proposals for length in one.look.lengths)
    count = sum(len(one.look.lengths) for one in proposals)
    yield f"# Of {count:,} rows looked at, {longer / count:.1%} are longer."
    yield f"sequence_length: {sequence_length}   # slots per pack, in tokens"


def _source(one: Proposal, folder: Path) -> Iterator[str]:
    look = one.look
    median = int(np.median(look.lengths))
    rows = f"{look.rows:,} rows" if look.counted else f"about {look.rows:,} rows"
    seen = look.rejected + len(look.lengths)
    sample = f"all {seen:,}" if look.counted and seen == look.rows else f"the first {seen:,}"
    refused = f", {look.rejected:,} of them rejected" if look.rejected else ""
    yield f"    {_key(one.candidate.name)}:   # {rows}; of {sample}: median {median:,} tokens{refused}"
    yield f"      path: {_place(one.candidate.path, folder)}"
    yield f"      format: {look.format}"
    unused = "   # named as for evaluation: 0 leaves it out" if one.candidate.evaluation and not one.weight else ""
    yield f"      weight: {one.weight}{unused}"


def _unknown(candidate: Candidate, look: Look) -> Iterator[str]:
    yield f"    # {candidate.name}: left out, {candidate.path}"
    yield f"    #   {' '.join(look.problem.split())}"


def _key(name: str) -> str:
    """A name as a key of YAML, quoted where it could be read as something else than text."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name) and name.lower() not in _WORDS
    return name if plain else json.dumps(name)


_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def _place(place: str, folder: Path) -> str:
    """A path as the config names it: below its folder relative to it, else whole; what is no path as it is."""
    path = Path(place).expanduser()
    if "*" not in place and not path.exists():
        return json.dumps(place, ensure_ascii=False)
    whole = path.resolve()
    if whole.is_relative_to(folder.resolve()):
        return json.dumps(f"${{CONFIG_DIR}}/{whole.relative_to(folder.resolve()).as_posix()}", ensure_ascii=False)
    return json.dumps(str(whole), ensure_ascii=False)
