"""`report`: a page about runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpt1_ds.commands.parser import Command
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.rundir import share_as


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or the folder of a fine-tuning study")
    parser.add_argument("--out", metavar="DIR", help="where the page goes (default: the first run's folder)")


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.report.page import write_report
    from gpt1_ds.report.study_page import is_study, write_study

    share_as(Path(options.out or options.runs[0]))
    studies = [Path(run) for run in options.runs if is_study(Path(run))]
    if studies:
        if len(options.runs) > 1 or options.out:
            raise ConfigError(f"{studies[0]}: is a study, whose page lies in its folder; name it alone, without --out")
        write_study(studies[0])
        print(studies[0] / "study.html")
        return 0
    print(write_report([Path(run) for run in options.runs], Path(options.out) if options.out else None))
    return 0


COMMAND = Command("report", "curves, tables and samples of runs as one page", _run, _add_options)
