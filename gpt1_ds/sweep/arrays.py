"""A sweep as SLURM arrays: one task per trial; branches wait for the array of their trunks, and a last job, which
collects, for all.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpt1_ds.common.errors import ConfigError, LaunchError
from gpt1_ds.common.files import write_atomic, write_json
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import to_yaml
from gpt1_ds.slurm.submit import COMMAND_SCRIPT, call, jobs_before, next_place, require_sbatch, sbatch_options, scripts
from gpt1_ds.sweep.trial import Sweep, Trial

SCRIPT = "array.sbatch"
RUNS_ONE_BY_ONE = ("--dependency=", "--output=", "--job-name=")  # what a run's own job is given


@dataclass(frozen=True)
class Array:
    """Trials that may run at the same time: task N of the array runs line N of the manifest."""

    trials: Sequence[Trial]
    manifest: Path
    options: list[str]


@dataclass(frozen=True)
class ArraySubmission:
    """Files to write into `place`, the arrays to submit one after the other, and what a job collects them with."""

    place: Path
    arrays: list[Array]
    files: dict[Path, str]
    after: list[str]  # jobs that must end well before
    last: list[str]  # words of the program; none: nothing follows
    last_options: list[str]

    def commands(self, jobs: Sequence[str]) -> Iterator[list[str]]:
        """The sbatch command of each array, then of the last job; `jobs` grows by the number of each before the next is
        asked for.
        """
        first = [f"--dependency=afterok:{':'.join(self.after)}", "--kill-on-invalid-dep=yes"] if self.after else []
        for array in self.arrays:
            after = [f"--dependency=afterany:{jobs[-1]}"] if jobs else first
            yield ["sbatch", "--parsable", *array.options, *after, str(self.place / SCRIPT), str(array.manifest)]
        if self.last:
            after = [f"--dependency=afterany:{jobs[-1]}"]
            yield ["sbatch", "--parsable", *self.last_options, *after, str(self.place / COMMAND_SCRIPT), *self.last]

    def lines(self) -> Iterator[str]:
        """What a person reads before it is submitted."""
        for path, text in self.files.items():
            yield f"# {path}\n{text.rstrip()}\n"
        jobs: list[str] = []
        for command in self.commands(jobs):
            yield shlex.join(command)
            jobs.append("JOB")


def prepare(sweep: Sweep, jobs: int | None, last: Sequence[str] = ()) -> ArraySubmission:
    """What `submit` will do for the trials that are not done, `jobs` at a time (None: as many as SLURM starts), and for
    a job with the words `last` of the program after them; touches nothing. Raises ConfigError where SLURM is asked for
    other ranks than the study counts on.
    """
    config = sweep.trials[0].config
    config = replace(config, slurm=replace(config.slurm, continuation="requeue"))  # a task resumes as itself
    ranks = config.slurm.nodes * config.slurm.ranks
    if ranks != sweep.study.nproc:
        raise ConfigError(
            f"nproc={sweep.study.nproc}: slurm.nodes={config.slurm.nodes} has {ranks} ranks for each cell; change one "
            "of them"
        )
    slurm = RunDir(sweep.folder).slurm.resolve()
    place = next_place(slurm)
    options = [word for word in sbatch_options(config, RunDir(sweep.folder)) if not word.startswith(RUNS_ONE_BY_ONE)]
    options += [f"--job-name={sweep.study.name}", f"--output={slurm}/%A_%a.out"]
    files = {place / name: text for name, text in scripts(SCRIPT, config, options).items()}
    files |= {place / COMMAND_SCRIPT: scripts(COMMAND_SCRIPT, config, options)[COMMAND_SCRIPT]} if last else {}
    alone = [word for word in options if not word.startswith(("--nodes=", "--signal=", "--output="))]
    alone += ["--nodes=1", f"--output={slurm}/%j.out"]
    submission = ArraySubmission(place, [], files, jobs_before(config.slurm), list(last), alone)
    command = sweep.target.rpartition(":")[2]  # pretrain or finetune
    groups = {"scratch": [x for x in sweep.left if x.trunk is None], "branches": [x for x in sweep.left if x.trunk]}
    for name, trials in groups.items():
        if trials:
            most = f"%{jobs}" if jobs else ""
            array = Array(trials, place / f"{name}.jsonl", [*options, f"--array=0-{len(trials) - 1}{most}"])
            configs = {place / "cells" / f"{_name(sweep, trial)}.yaml": to_yaml(trial.config) for trial in trials}
            submission.arrays.append(array)
            submission.files[array.manifest] = "".join(
                json.dumps([command, "-c", str(path)]) + "\n" for path in configs
            )
            submission.files.update(configs)
    return submission


def _name(sweep: Sweep, trial: Trial) -> str:
    """The trial's place in the folder of its sweep, as the name of a file."""
    return trial.run_dir.path.relative_to(sweep.folder).as_posix().replace("/", "--")


def submit(sweep: Sweep, submission: ArraySubmission) -> list[str]:
    """The arrays' numbers, and the last job's. Raises LaunchError where SLURM is not here or already has this study."""
    require_sbatch()
    name = sweep.study.name
    queued = call(["squeue", "--noheader", "--me", f"--name={name}", "--format=%F"], {}, LaunchError).split()
    queued = [
        job for job in queued if job != os.environ.get("SLURM_JOB_ID")
    ]  # the last job of a stage submits the next
    if queued:
        raise LaunchError(
            f"{sweep.folder}: job {queued[0]} of this study waits or runs, and would run its cells twice; wait for "
            f"it, or scancel {queued[0]}"
        )
    first = submission.arrays[0]
    RunDir(sweep.folder).create(sweep.trials[0].config.run.share, job=True)
    (submission.place / "cells").mkdir(parents=True)
    for path, text in submission.files.items():
        write_atomic(path, text)
    test = ["sbatch", "--test-only", *first.options, str(submission.place / SCRIPT), str(first.manifest)]
    call(test, {}, ConfigError)
    jobs: list[str] = []
    for command in submission.commands(jobs):
        answer = call(command, {"GPT1_DS_LAUNCH": str(submission.place)}, LaunchError)
        jobs.append(answer.strip().partition(";")[0])
    write_json(sweep.folder / "study.json", sweep.describe())
    return jobs
