"""``streamsft demo``: from nothing to a trained model, offline, and what to try next."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from streamsft.commands.console import make_console
from streamsft.commands.train import train
from streamsft.config import load_config
from streamsft.demodata.files import DemoFiles, write_demo
from streamsft.training.settings import TrainResult

__all__ = ["demo"]


def demo(
    folder: str | Path = "streamsft-demo",
    *,
    overrides: Iterable[str] = (),
    fresh: bool = False,
    quiet: bool = False,
    console: Console | None = None,
) -> TrainResult:
    """Write three generated corpora, a tokenizer trained on them and a config into `folder`, and train as it says.

    Called again it goes on with, or shows the end of, the run in `folder`.

    Args:
        folder: a new folder, or that of an earlier demo.
        overrides: ``key.path=value`` texts laid over the demo's config.
        fresh: move an earlier run aside and train again.
        quiet: print no tables and no explanations: only a line when training begins and when it ends.
        console: where to print; standard output by default.

    Raises:
        StreamsftError: `folder` holds something else, or what can be mended otherwise.
    """
    overrides = list(overrides)
    console = console or make_console()
    files = write_demo(folder)
    config = load_config(files.config, overrides)
    if not quiet:
        console.print(_introduction(files), markup=False, highlight=False, soft_wrap=True)
    result = train(config, fresh=fresh, quiet=quiet, console=console)
    if not quiet:
        console.print(_ending(files, result), markup=False, highlight=False, soft_wrap=True)
    return result


def _introduction(files: DemoFiles) -> str:
    listed = "\n".join(f"  {name}: {file}" for name, file in files.corpora.items())
    return f"Three generated corpora in three formats:\n{listed}\nA tokenizer trained on them: {files.tokenizer}\n"


def _ending(files: DemoFiles, result: TrainResult) -> str:
    lines = [f"\nWhat happened: {_story(result)}"]
    lines += [
        "What lies where:",
        f"  {files.config}   the config; change it and run it again",
        f"  {files.run_dir}/metrics.jsonl   loss, learning rate and what was drawn, at each log step",
        f"  {files.run_dir}/audit/rank-0.jsonl   which rows each step consumed",
        f"  {files.run_dir}/checkpoints   model, optimizer and the place in the data",
        "What to try next:",
        f"  streamsft preview {files.config}",
        f"  streamsft preview {files.config} --row strings:3",
        f"  streamsft train {files.config} train.steps=400   (goes on from step {result.steps})",
        f"  torchrun --nproc-per-node 2 -m streamsft train {files.config} train.steps=400",
    ]
    return "\n".join(lines)


def _story(result: TrainResult) -> str:
    if result.first_loss is None or result.last_loss is None:
        if result.nothing_to_do:
            return f"nothing: the run was at step {result.steps} already; --fresh trains again."
        return f"{result.steps - result.resumed_from} steps were made."
    return f"{result.steps} steps were made, and the loss went from {result.first_loss:.2f} to {result.last_loss:.2f}."
