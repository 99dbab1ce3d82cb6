"""`scaling`: how loss falls with depth and data."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter

from gpt1_ds.commands import options as shared
from gpt1_ds.commands import scaling_fit
from gpt1_ds.commands.parser import Command, Group
from gpt1_ds.common.files import write_json

PRETRAIN = "gpt1_ds.training.pretrain:pretrain"  # what a rank of a cell runs


def _study_options(parser: argparse.ArgumentParser) -> None:
    shared.study(parser, "scaling/books")


def _plan(options: argparse.Namespace) -> int:
    from gpt1_ds.commands.scaling_study import read_plan

    for line in read_plan(options).table():
        print(line)
    return 0


def _run_options(parser: argparse.ArgumentParser) -> None:
    _study_options(parser)
    shared.jobs(parser)


def _run(options: argparse.Namespace) -> int:
    """The cells that are not done, here, `jobs` at a time."""
    from gpt1_ds.commands.scaling_study import check, collect, jobs_at_a_time, read_plan
    from gpt1_ds.training import study

    planned = read_plan(options, prepare=True)
    jobs = jobs_at_a_time(planned, options)
    check(planned)
    code = study.run(planned, jobs, lambda: None, PRETRAIN)
    collect(planned)
    return code


def _submit_options(parser: argparse.ArgumentParser) -> None:
    _run_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print files and commands and exit")


def _submit(options: argparse.Namespace) -> int:
    """The cells that are not done, as arrays of SLURM."""
    from gpt1_ds.commands.scaling_study import check, jobs_at_a_time, read_plan
    from gpt1_ds.scaling import submit

    planned = read_plan(options, prepare=not options.dry_run)
    jobs = jobs_at_a_time(planned, options)
    prepared = submit.prepare(planned, jobs)
    if not prepared.arrays:
        print(f"{planned.folder}: all cells are done")
        return 0
    if options.dry_run:
        for path, text in prepared.files.items():
            print(f"# {path}\n{text.rstrip()}\n")
        jobs_before: list[str] = []
        for command in submit.commands(prepared, jobs_before):
            print(shlex.join(command))
            jobs_before.append("JOB")
        return 0
    check(planned)
    numbers = submit.submit(planned, prepared)
    write_json(planned.folder / "study.json", planned.describe())
    for number, array in zip(numbers, prepared.arrays, strict=True):
        print(f"job {number}: {len(array.cells)} cells, {jobs} at a time: {array.manifest}")
    print(f"watch it:  gpt1-ds scaling status {options.study}; squeue --name={planned.study.name}")
    return 0


def _status(options: argparse.Namespace) -> int:
    from gpt1_ds.commands.scaling_study import read_plan, status_lines

    for line in status_lines(read_plan(options)):
        print(line)
    return 0


def _collect(options: argparse.Namespace) -> int:
    from gpt1_ds.commands.scaling_study import collect, read_plan

    planned = read_plan(options)
    rows = collect(planned)
    ended = Counter(row["outcome"] for row in rows)
    print(f"{planned.folder / 'results.csv'}: {len(rows)} cells, {', '.join(f'{n} {x}' for x, n in ended.items())}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from gpt1_ds.commands.scaling_study import study_folder
    from gpt1_ds.report.scaling_page import write_scaling_report

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
