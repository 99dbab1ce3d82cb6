"""Commands of a scaling study: `scaling plan`, `run`, `submit`, `status`, `collect` and `report`."""

from __future__ import annotations

import argparse
from collections import Counter

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.sweep import arrays, results, runner
from gpt1_ds.sweep.scaling_study import load_scaling
from gpt1_ds.sweep.scaling_sweep import ScalingSweep, make_sweep, unidentified
from gpt1_ds.sweep.scaling_trials import base_config, study_folder
from gpt1_ds.sweep.study_file import jobs_at_a_time
from gpt1_ds.verbs import check_data, found_data, with_embedded_corpus


def plan(options: argparse.Namespace) -> int:
    print(*read_sweep(options).table(), sep="\n")
    return 0


def run(options: argparse.Namespace) -> int:
    """Run the trials that are not done, here, `jobs` at a time."""
    sweep = read_sweep(options, prepare=True)
    jobs = jobs_at_a_time(sweep.study, options.jobs)
    _check(sweep)
    code = runner.run(sweep, jobs)
    results.collect(sweep)
    return code


def submit(options: argparse.Namespace) -> int:
    """Submit the trials that are not done, as SLURM arrays."""
    sweep = read_sweep(options, prepare=not options.dry_run)
    jobs = jobs_at_a_time(sweep.study, options.jobs)
    submission = arrays.prepare(sweep, jobs)
    if not submission.arrays:
        print(f"{sweep.folder}: all cells are done")
        return 0
    if options.dry_run:
        print(*submission.lines(), sep="\n")
        return 0
    _check(sweep)
    for number, array in zip(arrays.submit(sweep, submission), submission.arrays, strict=True):
        print(f"job {number}: {len(array.trials)} cells, {jobs} at a time: {array.manifest}")
    print(f"watch it:  gpt1-ds scaling status {options.study}; squeue --name={sweep.study.name}")
    return 0


def status(options: argparse.Namespace) -> int:
    print(*read_sweep(options).status(), sep="\n")
    return 0


def collect(options: argparse.Namespace) -> int:
    sweep = read_sweep(options)
    rows = results.collect(sweep)
    ended = Counter(row["outcome"] for row in rows)
    print(f"{sweep.folder / 'results.csv'}: {len(rows)} cells, {', '.join(f'{n} {x}' for x, n in ended.items())}")
    return 0


def report(options: argparse.Namespace) -> int:
    from gpt1_ds.report.scaling_page import write_scaling_report

    print(write_scaling_report(study_folder(options.study)))
    return 0


def read_sweep(options: argparse.Namespace, prepare: bool = False) -> ScalingSweep:
    """The sweep of a study's file. Nothing is written, unless `prepare` asks for the corpus inside Python.

    Raises ConfigError for a study that cannot answer its question.
    """
    study, overrides = load_scaling(options.study), list(options.overrides)
    base = base_config(study, overrides)
    found = with_embedded_corpus(base, prepare).data.path
    if found != base.data.path:
        overrides.append(f"data.path={found[0].path}")
        base = base_config(study, overrides)
    sweep = make_sweep(study, overrides, *found_data(base))
    ConfigError.raise_all(f"{options.study}: {problem}" for problem in unidentified(sweep.trials))
    return sweep


def _check(sweep: ScalingSweep) -> None:
    """Report once, before anything starts, what every trial would report: missing data, or runs of another study."""
    check_data(sweep.trials[0].config)
    sweep.check()
