"""``streamsft report``: what one run, or several, were fed and how it went, as a page that opens offline."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from streamsft.errors import ConfigError
from streamsft.pages.report import report_page
from streamsft.pages.runs import read_run
from streamsft.pages.shell import check_page, write_page

__all__ = ["report"]

_log = logging.getLogger(__name__)


def report(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    notices: list[str] | None = None,
) -> Path:
    """Write the report of a run, or of several beside each other. The runs may still be going on.

    The page is one file of about 5 MB that needs no network: the mix over time, tokens and passes by source, lengths,
    packing, rows that are not used, throughput and waiting, loss, resumes and edits of the mix, and the config.

    Args:
        runs: the run's directory (`train.run_dir`), or several.
        out: the page; by default ``report.html`` in the run's directory, for several runs in the current one. An
            earlier page there is replaced, another file never.
        notices: where to add what the page leaves out, a sentence each, which is logged too.

    Returns:
        The file.

    Raises:
        RunError: there is no record of a run, a file is damaged, or the page cannot be written.
        ConfigError: no run is given, or the package ``plotly`` is not installed.
    """
    given = [Path(run) for run in ([runs] if isinstance(runs, str | os.PathLike) else runs)]
    if not given:
        raise ConfigError("report: give the directory of one run or more")
    path = Path(out) if out is not None else (given[0] if len(given) == 1 else Path()) / "report.html"
    found = [read_run(run) for run in given]
    check_page(path, charts=True)
    told = [notice for run in found for notice in run.notices]
    for notice in told:
        _log.warning("%s", notice)
    if notices is not None:
        notices += told
    names = [run.name for run in found]
    for run in found:
        if names.count(run.name) > 1:
            run.name = str(run.path)
    write_page(path, report_page(found))
    return path
