"""`scaling`: how loss falls with depth and data. scaling_law.py fits the law."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING

from gpt1_ds.commands import scaling_law, shared_options
from gpt1_ds.commands.parser import Command, Group
from gpt1_ds.common.errors import EXIT_CONTINUE
from gpt1_ds.common.rundir import share_as
from gpt1_ds.common.text import amount

if TYPE_CHECKING:
    from gpt1_ds.sweep.scaling_sweep import ScalingSweep


def _study_options(parser: argparse.ArgumentParser) -> None:
    shared_options.study(parser, "scaling/books")


def _plan(options: argparse.Namespace) -> int:
    from gpt1_ds.sweep.scaling_sweep import read_sweep

    print(*read_sweep(options.study, options.overrides).table(), sep="\n")
    return 0


def _run_options(parser: argparse.ArgumentParser) -> None:
    _study_options(parser)
    shared_options.jobs(parser)


def _run(options: argparse.Namespace) -> int:
    """Runs the trials that are not done, here, `jobs` at a time."""
    from gpt1_ds.sweep import runner, scaling_collect
    from gpt1_ds.sweep.scaling_sweep import read_sweep
    from gpt1_ds.sweep.study_file import jobs_at_a_time

    sweep = read_sweep(options.study, options.overrides, prepare=True)
    jobs = jobs_at_a_time(sweep.study, options.jobs)
    sweep.check()
    with scaling_collect.growing_table(sweep) as update:
        code = runner.run(sweep, jobs, update)
    scaling_collect.collect(sweep)
    return code


def _submit_options(parser: argparse.ArgumentParser) -> None:
    _run_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print files and commands and exit")


def _submit(options: argparse.Namespace) -> int:
    """Submits the trials that are not done, as SLURM arrays."""
    from gpt1_ds.sweep import arrays
    from gpt1_ds.sweep.scaling_sweep import read_sweep
    from gpt1_ds.sweep.study_file import jobs_at_a_time

    sweep = read_sweep(options.study, options.overrides, prepare=not options.dry_run)
    jobs = jobs_at_a_time(sweep.study, options.jobs)
    last, after_trial = collecting(sweep, options.study, options.overrides)
    numbers, lines = arrays.start(sweep, jobs, last, after_trial, options.dry_run)
    print(*lines, sep="\n")
    if numbers:
        print(f"watch it:  gpt1-ds scaling status {quote(options.study)}; squeue --name={sweep.study.name}")
    return 0


def collecting(sweep: ScalingSweep, study: str, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments of the program for the job after the arrays of a study, which also fits its law, and for a
    task of an array at its end.
    """
    arguments = ["scaling", "collect", study]
    one_node = sweep.trials[0].config.slurm.nodes == 1  # the last job has one node
    last = [*arguments, *(["--missing"] if one_node else []), *(["--fit"] if sweep.has_law else []), *overrides]
    return last, [*arguments, "--growing", *overrides]


def _status(options: argparse.Namespace) -> int:
    from gpt1_ds.sweep.scaling_sweep import read_sweep

    print(*read_sweep(options.study, options.overrides).status(), sep="\n")
    return 0


def _collect_options(parser: argparse.ArgumentParser) -> None:
    _study_options(parser)
    parser.add_argument("--missing", action="store_true", help="first run, here, the cells that are not done")
    parser.add_argument("--fit", action="store_true", help="then fit the law as `scaling fit` does, write report.html")
    parser.add_argument("--growing", action="store_true", help=argparse.SUPPRESS)  # a cell has ended, others run


def _collect(options: argparse.Namespace) -> int:
    from gpt1_ds.scaling.fitting import fit_file, write_fit
    from gpt1_ds.sweep import runner, scaling_collect
    from gpt1_ds.sweep.scaling_sweep import read_sweep

    sweep, code = read_sweep(options.study, options.overrides, prepare=options.missing), 0
    if options.missing:
        sweep.check()
        code = runner.run(sweep, 1, lambda: None)
    share_as(sweep.folder)
    rows = scaling_collect.collect(sweep, options.growing)
    outcomes = Counter(row["outcome"] for row in rows)
    counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
    print(f"{sweep.folder / 'results.csv'}: {amount(len(rows), 'cell')}, {counts}", flush=True)
    if options.fit and code != EXIT_CONTINUE:
        record, predictions = fit_file(sweep.folder / "results.csv")
        write_fit(sweep.folder, record, predictions)
        print("\n".join(scaling_law.describe_fit(record)))
        scaling_law.publish(sweep.folder, record, predictions, scaling_law.report_figures(sweep.folder))
    return code


def _report(options: argparse.Namespace) -> int:
    from gpt1_ds.report.scaling_page import write_scaling_report
    from gpt1_ds.sweep.scaling_trials import study_folder

    folder = study_folder(options.study, options.overrides)
    share_as(folder)
    print(write_scaling_report(folder))
    return 0


COMMAND = Group(
    "scaling",
    "how loss falls with depth and data",
    (
        Command("plan", "every cell and what it needs", _plan, _study_options),
        Command("run", "the cells that are not done, here", _run, _run_options),
        Command("submit", "the same, as an array of SLURM jobs", _submit, _submit_options),
        Command("status", "how far every cell is", _status, _study_options),
        Command("collect", "run folders -> results.csv", _collect, _collect_options),
        scaling_law.FIT,
        scaling_law.PREDICT,
        Command("report", "figures and tables as one page", _report, _study_options),
    ),
)
