"""`scaling`: how loss falls with depth and data."""

from __future__ import annotations

import argparse
from collections import Counter

from gpt1_ds.commands import options as shared
from gpt1_ds.commands import scaling_fit
from gpt1_ds.commands.parser import Command, Group
from gpt1_ds.common.text import amount


def _study_options(parser: argparse.ArgumentParser) -> None:
    shared.study(parser, "scaling/books")


def _plan(options: argparse.Namespace) -> int:
    from gpt1_ds.sweep.scaling_sweep import read_sweep

    print(*read_sweep(options.study, options.overrides).table(), sep="\n")
    return 0


def _run_options(parser: argparse.ArgumentParser) -> None:
    _study_options(parser)
    shared.jobs(parser)


def _run(options: argparse.Namespace) -> int:
    """Run the trials that are not done, here, `jobs` at a time."""
    from gpt1_ds.sweep import runner, scaling_sweep
    from gpt1_ds.sweep.scaling_sweep import read_sweep
    from gpt1_ds.sweep.study_file import jobs_at_a_time

    sweep = read_sweep(options.study, options.overrides, prepare=True)
    jobs = jobs_at_a_time(sweep.study, options.jobs)
    sweep.check()
    code = runner.run(sweep, jobs)
    scaling_sweep.collect(sweep)
    return code


def _submit_options(parser: argparse.ArgumentParser) -> None:
    _run_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print files and commands and exit")


def _submit(options: argparse.Namespace) -> int:
    """Submit the trials that are not done, as SLURM arrays."""
    from gpt1_ds.sweep import arrays
    from gpt1_ds.sweep.scaling_sweep import read_sweep
    from gpt1_ds.sweep.study_file import jobs_at_a_time

    sweep = read_sweep(options.study, options.overrides, prepare=not options.dry_run)
    jobs = jobs_at_a_time(sweep.study, options.jobs)
    submission = arrays.prepare(sweep, jobs)
    if not submission.arrays:
        print(f"{sweep.folder}: all cells are done")
        return 0
    if options.dry_run:
        print(*submission.lines(), sep="\n")
        return 0
    sweep.check()
    for number, array in zip(arrays.submit(sweep, submission), submission.arrays, strict=True):
        print(f"job {number}: {amount(len(array.trials), 'cell')}, {jobs} at a time: {array.manifest}")
    print(f"watch it:  gpt1-ds scaling status {options.study}; squeue --name={sweep.study.name}")
    return 0


def _status(options: argparse.Namespace) -> int:
    from gpt1_ds.sweep.scaling_sweep import read_sweep

    print(*read_sweep(options.study, options.overrides).status(), sep="\n")
    return 0


def _collect(options: argparse.Namespace) -> int:
    from gpt1_ds.sweep import scaling_sweep
    from gpt1_ds.sweep.scaling_sweep import read_sweep

    sweep = read_sweep(options.study, options.overrides)
    rows = scaling_sweep.collect(sweep)
    ended = Counter(row["outcome"] for row in rows)
    counted = ", ".join(f"{number} {name}" for name, number in ended.items())
    print(f"{sweep.folder / 'results.csv'}: {amount(len(rows), 'cell')}, {counted}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from gpt1_ds.report.scaling_page import write_scaling_report
    from gpt1_ds.sweep.scaling_trials import study_folder

    print(write_scaling_report(study_folder(options.study)))
    return 0


COMMAND = Group(
    "scaling",
    "how loss falls with depth and data",
    (
        Command("plan", "every cell and what it needs", _plan, _study_options),
        Command("run", "the cells that are not done, here", _run, _run_options),
        Command("submit", "the same, as an array of SLURM jobs", _submit, _submit_options),
        Command("status", "how far every cell is", _status, _study_options),
        Command("collect", "run folders -> results.csv", _collect, _study_options),
        *scaling_fit.COMMANDS,
        Command("report", "figures and tables as one page", _report, _study_options),
    ),
)
