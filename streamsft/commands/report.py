"""``streamsft report``: what one run, or several, were fed and how it went, as a page that opens offline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from streamsft.errors import ConfigError
from streamsft.pages.report import report_page
from streamsft.pages.runs import read_run
from streamsft.pages.shell import write_page

__all__ = ["report"]


def report(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None = None
) -> Path:
    """Write the report of a run, or of several beside each other. The runs may still be going on.

    The page is one file of about 5 MB that needs no network: the mix over time, tokens and passes by source, lengths,
    packing, rows that are not used, throughput and waiting, loss, resumes and edits of the mix, and the config.

    Args:
        runs: the run's directory (`train.run_dir`), or several.
        out: the file to write; by default ``report.html`` in the run's directory, for several runs in this one.

    Returns:
        The file.

    Raises:
        RunError: there is no record of a run, a file is damaged, or the page cannot be written.
        ConfigError: no run is given, or the package ``plotly`` is not installed.
    """
    given = [Path(run) for run in ([runs] if isinstance(runs, str | os.PathLike) else runs)]
    if not given:
        raise ConfigError("report: give the directory of one run or more")
    found = [read_run(path) for path in given]
    names = [run.name for run in found]
    for run in found:
        if names.count(run.name) > 1:
            run.name = str(run.path)
    path = Path(out) if out is not None else (given[0] if len(given) == 1 else Path()) / "report.html"
    write_page(path, report_page(found))
    return path
