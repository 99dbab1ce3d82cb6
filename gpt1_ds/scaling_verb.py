"""Verbs of a scaling study: `scaling plan`, `run`, `submit`, `status` and `collect`."""

from __future__ import annotations

import argparse
import os
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.common.files import write_json
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.common.units import count, duration
from gpt1_ds.config import Config
from gpt1_ds.plan import machine
from gpt1_ds.sweep import outcome, tables
from gpt1_ds.sweep.results import collect as collected
from gpt1_ds.sweep.results import downstream
from gpt1_ds.sweep.scaling_plan import StudyPlan, unidentified
from gpt1_ds.sweep.scaling_study import load_scaling
from gpt1_ds.sweep.scaling_trials import Cell, base_config, cells
from gpt1_ds.verbs import check_data, found_data, with_embedded_corpus

PRETRAIN = "gpt1_ds.training.pretrain:pretrain"  # what a rank of a cell runs


def plan(options: argparse.Namespace) -> int:
    planned = read_plan(options)
    for line in planned.table():
        print(line)
    return 0


def run(options: argparse.Namespace) -> int:
    """The cells that are not done, here, `jobs` at a time."""
    from gpt1_ds.sweep import runner

    planned = read_plan(options, prepare=True)
    jobs = _jobs(planned, options)
    _check(planned)
    code = runner.run(planned, jobs, lambda: None, PRETRAIN)
    _collect(planned)
    return code


def submit(options: argparse.Namespace) -> int:
    """The cells that are not done, as arrays of SLURM."""
    from gpt1_ds.sweep import arrays as submission

    planned = read_plan(options, prepare=not options.dry_run)
    jobs = _jobs(planned, options)
    prepared = submission.prepare(planned, jobs)
    if not prepared.arrays:
        print(f"{planned.folder}: all cells are done")
        return 0
    if options.dry_run:
        for path, text in prepared.files.items():
            print(f"# {path}\n{text.rstrip()}\n")
        jobs_before: list[str] = []
        for command in submission.commands(prepared, jobs_before):
            print(shlex.join(command))
            jobs_before.append("JOB")
        return 0
    _check(planned)
    numbers = submission.submit(planned, prepared)
    write_json(planned.folder / "study.json", planned.describe())
    for number, array in zip(numbers, prepared.arrays, strict=True):
        print(f"job {number}: {len(array.cells)} cells, {jobs} at a time: {array.manifest}")
    print(f"watch it:  gpt1-ds scaling status {options.study}; squeue --name={planned.study.name}")
    return 0


def status(options: argparse.Namespace) -> int:
    planned = read_plan(options)
    for line in _status(planned):
        print(line)
    return 0


def collect(options: argparse.Namespace) -> int:
    planned = read_plan(options)
    rows = _collect(planned)
    ended = Counter(row["outcome"] for row in rows)
    print(f"{planned.folder / 'results.csv'}: {len(rows)} cells, {', '.join(f'{n} {x}' for x, n in ended.items())}")
    return 0


def report(options: argparse.Namespace) -> int:
    from gpt1_ds.report.scaling_page import write_scaling_report

    print(write_scaling_report(study_folder(options.study)))
    return 0


def read_plan(options: argparse.Namespace, prepare: bool = False) -> StudyPlan:
    """The study, its cells and the machine. Nothing is written, unless `prepare` asks for the corpus inside Python.
    Raises ConfigError for a study that cannot answer its question.
    """
    study = load_scaling(options.study)
    words = [*options.overrides, *_embedded(base_config(study, options.overrides), prepare)]
    base = base_config(study, words)
    made = cells(study, words, *found_data(base))
    ConfigError.raise_all(f"{options.study}: {problem}" for problem in unidentified(made))
    return StudyPlan(study, made, _machine(base))


def study_folder(name: str) -> Path:
    """The folder of the study in the file `name`, or `name` itself where it is a folder."""
    if Path(name).is_dir():
        return Path(name)
    study = load_scaling(name)
    return Path(base_config(study, []).run.dir) / study.name


def _jobs(planned: StudyPlan, options: argparse.Namespace) -> int:
    jobs: int = planned.study.jobs if options.jobs is None else options.jobs
    if jobs < 1:
        raise ConfigError(f"--jobs={jobs}: at least 1 cell runs at a time")
    return jobs


def _machine(base: Config) -> machine.Machine:
    """What the study is to run on: what was measured here, unless that is no machine of its kind."""
    device = "cuda" if base.slurm.gpus_per_node else "cpu"
    found = machine.find(None, device)
    return found if found.device == device else machine.find("h100" if device == "cuda" else "cpu")


def _embedded(base: Config, prepare: bool) -> list[str]:
    """The folder of the corpus inside Python, where the study uses that."""
    found = with_embedded_corpus(base, prepare).data.path
    return [] if found == base.data.path else [f"data.path={found[0].path}"]


def _check(planned: StudyPlan) -> None:
    """Say once, before anything starts, what every cell would say: missing data, or cells of another study."""
    check_data(planned.cells[0].config)
    ConfigError.raise_all(problem for cell in planned.cells for problem in _differences(cell))


def _differences(cell: Cell) -> Iterator[str]:
    """A finished cell's run folder that belongs to another configuration."""
    from gpt1_ds.config import load_recorded
    from gpt1_ds.training import resume

    if cell.run_dir.config.exists():
        before = load_recorded(cell.run_dir.config)
        changed = resume.changes(before, cell.config)
        wrong = {key: values for key, values in changed.items() if not key.startswith(resume.MAY_CHANGE)}
        for key, (old, new) in wrong.items():
            yield (
                f"{cell.run_dir.path} ran with {key}={old}, and the study now says {new}; set it back, remove the "
                "folder, or give the study another name"
            )


def _collect(planned: StudyPlan) -> list[dict[str, Any]]:
    if not planned.folder.is_dir():
        raise DataError(f"{planned.folder}: no such study has run; start it with `gpt1-ds scaling run`")
    rows = collected(planned.cells, planned.study.nproc)
    tables.write_table(planned.folder / "results.csv", tables.COLUMNS, rows)
    scores = downstream(planned.cells)
    if scores:
        tables.write_table(planned.folder / "downstream.csv", tables.DOWNSTREAM, scores)
    _show(planned, rows)
    return rows


def _show(planned: StudyPlan, rows: list[dict[str, Any]]) -> None:
    """The table of cells as a W&B run of the study's group, where the study is tracked."""
    config = planned.cells[0].config
    if config.tracking.wandb == "off":
        return
    from gpt1_ds.tracking.mirror import Mirror, Start
    from gpt1_ds.training.mirrored import run_id

    run_dir, tracking = RunDir(planned.folder), config.tracking
    start = Start(
        mode=tracking.wandb,
        id=run_id(run_dir),
        name=planned.study.name,
        folder=str(run_dir.path.resolve()),
        project=tracking.project,
        group=planned.study.name,
        tags=tracking.tags,
        job_type="study",
        config=planned.describe(),
        pid=os.getpid(),
    )
    mirror = Mirror(start)
    mirror.table("cells", rows)
    mirror.finish(dict(Counter(row["outcome"] for row in rows)))


def _status(planned: StudyPlan) -> Iterator[str]:
    wide = max(len(cell.name) for cell in planned.cells)
    yield f"{'cell':<{wide}}  {'N':>6}{'D':>8}  {'outcome':<10}{'step':>14}  {'loss':>7}  {'time':<12}"
    ended: Counter[str] = Counter()
    for cell in planned.cells:
        record = outcome.read(cell.run_dir, cell.steps)
        ended[record.outcome] += 1
        step = record.train[-1]["step"] if record.train else 0
        loss = "" if record.loss is None else f"{record.loss:.4f}"
        time = duration(record.seconds) if record.seconds else ""
        yield (
            f"{cell.name:<{wide}}  {count(cell.parameters):>6}{count(cell.tokens):>8}  {record.outcome:<10}"
            f"{f'{step}/{cell.steps}':>14}  {loss:>7}  {time:<12}{record.reason}".rstrip()
        )
    yield f"{planned.folder}: {', '.join(f'{number} {name}' for name, number in ended.most_common())}"
