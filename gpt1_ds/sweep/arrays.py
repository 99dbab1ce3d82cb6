"""A study as SLURM arrays: one task per cell; branches wait for the array of their trunks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpt1_ds.common.errors import ConfigError, LaunchError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import to_yaml
from gpt1_ds.slurm.request import sbatch_options
from gpt1_ds.slurm.submit import call, scripts
from gpt1_ds.sweep.scaling_plan import StudyPlan
from gpt1_ds.sweep.scaling_trials import Cell

SCRIPT = "array.sbatch"
RUNS_ONE_BY_ONE = ("--dependency=", "--output=", "--job-name=")  # what a run's own job is given


@dataclass(frozen=True)
class Array:
    """Cells that may run at the same time: task N of the array runs line N of the manifest."""

    cells: tuple[Cell, ...]
    manifest: Path
    options: list[str]

    @property
    def lines(self) -> str:
        words = (["pretrain", "-c", str(configuration(self.manifest, cell))] for cell in self.cells)
        return "".join(json.dumps(line) + "\n" for line in words)


@dataclass(frozen=True)
class Submission:
    """Files to write into `place`, and the arrays to submit one after the other."""

    place: Path
    arrays: tuple[Array, ...]
    files: dict[Path, str]


def prepare(planned: StudyPlan, jobs: int) -> Submission:
    """What `submit` will do for the cells that are not done; touches nothing. Raises ConfigError where SLURM is asked
    for other ranks than the study counts on.
    """
    wanted = planned.cells[0].config.slurm
    if wanted.nodes * wanted.ranks != planned.study.nproc:
        raise ConfigError(
            f"nproc={planned.study.nproc}: slurm.nodes={wanted.nodes} has {wanted.nodes * wanted.ranks} ranks for each "
            "cell; change one of them"
        )
    study, waiting = planned.study, [cell for cell in planned.cells if not cell.done]
    slurm = RunDir(planned.folder).slurm.resolve()
    place = slurm / f"submission-{1 + len(list(slurm.glob('submission-*')))}"
    config = planned.cells[0].config
    config = replace(config, slurm=replace(config.slurm, continuation="requeue"))  # a task goes on as itself
    options = [word for word in sbatch_options(config, RunDir(planned.folder)) if not word.startswith(RUNS_ONE_BY_ONE)]
    options += [f"--job-name={study.name}", f"--output={slurm}/%A_%a.out"]
    groups = {"scratch": [x for x in waiting if x.trunk is None], "branches": [x for x in waiting if x.trunk]}
    arrays = tuple(
        Array(tuple(group), place / f"{name}.jsonl", [*options, f"--array=0-{len(group) - 1}%{jobs}"])
        for name, group in groups.items()
        if group
    )
    files = {place / name: text for name, text in scripts(SCRIPT, config, options).items()}
    for array in arrays:
        files[array.manifest] = array.lines
        files |= {configuration(array.manifest, cell): to_yaml(cell.config) for cell in array.cells}
    return Submission(place, arrays, files)


def configuration(manifest: Path, cell: Cell) -> Path:
    return manifest.parent / "cells" / f"{cell.name}.yaml"


def commands(submission: Submission, jobs: Sequence[str]) -> Iterator[list[str]]:
    """sbatch's words for each array; `jobs` grows by the number of each before the next is asked for."""
    for array in submission.arrays:
        after = [f"--dependency=afterany:{jobs[-1]}"] if jobs else []
        yield ["sbatch", "--parsable", *array.options, *after, str(submission.place / SCRIPT), str(array.manifest)]


def submit(planned: StudyPlan, submission: Submission) -> list[str]:
    """The arrays' numbers. Raises LaunchError where SLURM is not here or already has this study."""
    if shutil.which("sbatch") is None:
        raise LaunchError("sbatch is not here; submit on a host of the cluster, or look with --dry-run")
    name = planned.study.name
    queued = call(["squeue", "--noheader", "--me", f"--name={name}", "--format=%F"], {}, LaunchError).split()
    if queued:
        raise LaunchError(
            f"{planned.folder}: job {queued[0]} of this study waits or runs, and would run its cells twice; wait for "
            f"it, or scancel {queued[0]}"
        )
    first = submission.arrays[0]
    test = ["sbatch", "--test-only", *first.options]
    RunDir(planned.folder).create(planned.cells[0].config.run.share)
    (submission.place / "cells").mkdir(parents=True)
    for path, text in submission.files.items():
        write_atomic(path, text)
    call([*test, str(submission.place / SCRIPT), str(first.manifest)], {}, ConfigError)
    jobs: list[str] = []
    for command in commands(submission, jobs):
        answer = call(command, {"GPT1_DS_LAUNCH": str(submission.place)}, LaunchError)
        jobs.append(answer.strip().partition(";")[0])
    return jobs
