"""`docs/cli.md`, made from the command line itself: ``python -m streamsft.cli_docs > docs/cli.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from streamsft.cli import app

__all__ = ["JSON_KEYS", "document"]

JSON_KEYS = {
    "init": "`config`, `sources` (`path`, `format`, `rows`, `weight`), `left_out`",
    "forecast": (
        "`steps`, `exact`, `packs`, `slots`, `samples`, `tokens`, `supervised_tokens`, `documents_per_pack`, "
        "`packing_efficiency`, `seconds`, `warnings`, `weights`, `sources` by name, `course` over the steps"
    ),
    "explain": (
        "with `--step` `step`, `data_step`, `made` (null without `--run`), `run_step`, the last step that the run "
        "tells of, and `packs` with their `documents`, whose `place` is `file:row`, rows from 0; with `--find` `row` "
        "and `steps`"
    ),
    "demo": "the same as of `train`",
    "validate": "`sources`: what each reads from; `config`: the whole config, defaults included",
    "tokenize": (
        "`sources`: by name `rows`, `tokens`, `supervised`, `supervised_share`, `p50`, `p95`, `longest`, `rejected` "
        "(by reason), `fingerprint`, `path`, `rejected_file`, `not_tokenized_again` (`rows`, `files`, `parts`)"
    ),
    "preview": (
        "`samples` and `tokens` by source, `packs`, `slots`, `packing_efficiency`; with `--row`: `row`, and "
        "`rejected`, the reason or null"
    ),
    "train": (
        "`steps`, `asked`, `run_dir`, `resumed_from`, `first_loss`, `last_loss`, `stopped_by`, `skipped_steps`, "
        "`moved_to`, `nothing_to_do`, `message`"
    ),
    "inspect": (
        "`layout`, `rows`, `usable`, `tokens`, `supervised`, `supervised_share`, `largest_id`, `lengths` (from, to, "
        "rows), `median`, `p95`, `longest`, `files` (name, bytes), `origins`, `row_groups`, `carried`, `tokenizer`, "
        "`fingerprint`"
    ),
    "convert": "of the new store, the same as of `inspect`",
    "report": "`page`: where it was written; `notices`: what it leaves out, and why",
    "version": "`versions`: by name",
}
"""What ``--json`` prints of each command, beside what all have."""

_HEAD = """\
# The command line

This page is made from the code. `streamsft COMMAND --help` says the same.

- **Overrides.** `key.path=value` behind the config changes a key for this call; see [the config](config.md).
- **Exit codes.** 0: it is done, or there was nothing to do. 2: something that you can mend; one message says where,
  what and how, with the line of the config where one is meant, and `--debug` shows the traceback. 130 and 143: stopped
  by Ctrl-C or SIGTERM; training saves a checkpoint first, and nothing half-written is left. 141: what reads the
  output has gone. 1: a fault in streamsft.
- **`--json`** prints one JSON object as the only line on standard output, and all else on standard error. Every object
  has `command`, `ok` and `exit_code`; where `ok` is false, `error` too.
- **Colours and width.** On a terminal, output is coloured and as wide as the terminal, unless `NO_COLOR` is set;
  elsewhere it is plain text of 120 columns, with supervised text in ⟦brackets⟧.
- **Several processes.** `torchrun --nproc-per-node N -m streamsft train CONFIG`; rank 0 prints.
- **Without a network** set `HF_HUB_OFFLINE=1`; where it is not set and the hub does not answer within seconds, its
  local cache is used.
- **Shell completion:** `streamsft --install-completion`; keys of overrides are completed too.
"""


def document() -> str:
    """The page as Markdown."""
    group: Any = typer.main.get_command(app)
    return "\n".join([_HEAD, *(line for name, command in group.commands.items() for line in _section(name, command))])


def _section(name: str, command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    yield from (f"## {name}", "")
    for paragraph in str(command.help).split("\n\n"):
        yield from (" ".join(paragraph.split()), "")
    usage = (p.metavar if p.required else f"[{p.metavar}]{'...' * (p.nargs == -1)}" for p in arguments)
    yield from (" ".join(["    streamsft", name, *usage, "[OPTIONS]"]), "")
    yield from ("| | |", "|---|---|")
    yield from (_row(p.metavar, p.help) for p in arguments)
    yield from (_row(f"{', '.join(p.opts)}{_value(p)}", p.help) for p in options)
    yield from ("", f"`--json`: {JSON_KEYS[name]}.", "")


def _value(option: Any) -> str:
    return "" if option.is_flag else f" {option.metavar}"


def _row(shown: str, text: str) -> str:
    escaped = shown.replace("|", "\\|")  # in a table, also inside code
    return f"| `{escaped}` | {' '.join(text.split())} |"


if __name__ == "__main__":
    print(document().rstrip())
