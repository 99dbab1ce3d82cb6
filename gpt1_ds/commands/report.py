"""`report`: a page about runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpt1_ds.commands.parser import Command


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--out", metavar="DIR", help="where the page goes (default: the first run's folder)")


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.report.page import write_report

    print(write_report([Path(run) for run in options.runs], Path(options.out) if options.out else None))
    return 0


COMMAND = Command("report", "curves, tables and samples of runs as one page", _run, _add_options)
