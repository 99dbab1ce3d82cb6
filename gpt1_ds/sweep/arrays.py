"""A sweep as SLURM arrays: one task per trial; branches wait for the array of their trunks, and a last job, which
collects, for all. A task whose trial has ended can run one more command, so that results grow.
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
from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.common.text import amount
from gpt1_ds.config import Config, to_yaml
from gpt1_ds.slurm.site import array_limit
from gpt1_ds.slurm.status import jobs as jobs_of
from gpt1_ds.slurm.status import note_submission
from gpt1_ds.slurm.submit import (
    COMMAND_SCRIPT,
    call,
    jobs_before,
    layout_problems,
    next_place,
    output,
    require_sbatch,
    sbatch_options,
    scripts,
)
from gpt1_ds.sweep.runner import LOCK_SECONDS
from gpt1_ds.sweep.trial import Sweep, Trial

SCRIPT = "array.sbatch"
AFTER_TRIAL = "ended.jsonl"  # beside a manifest, like a line of it: what array.sbatch runs when a trial has ended
RUNS_ONE_BY_ONE = ("--dependency=", "--output=", "--job-name=")  # what a run's own job is given


@dataclass(frozen=True)
class Array:
    """Trials that may run at the same time: task N of the array runs line N of the manifest, by the scripts in `place`.
    `after` says of how many arrays before it the ends are waited for.
    """

    trials: Sequence[Trial]
    place: Path
    manifest: Path
    options: list[str]
    after: int


@dataclass(frozen=True)
class ArraySubmission:
    """Files to write into `place`, the arrays to submit one after the other, and what a job collects them with."""

    place: Path
    arrays: list[Array]
    files: dict[Path, str]
    after: list[str]  # jobs that must end well before
    last: list[str]  # arguments of the program; none: nothing follows
    last_options: list[str]

    def commands(self, jobs: Sequence[str]) -> Iterator[tuple[Path, list[str]]]:
        """Yields (the place of its scripts, the sbatch command) of each array, then of the last job; the number of each
        must be in `jobs` before the next is asked for.
        """
        first = [f"--dependency=afterok:{':'.join(self.after)}", "--kill-on-invalid-dep=yes"] if self.after else []
        for array in self.arrays:
            after = [f"--dependency=afterany:{':'.join(jobs[: array.after])}"] if array.after else first
            arguments = [*array.options, *after, str(array.place / SCRIPT), str(array.manifest)]
            yield array.place, ["sbatch", "--parsable", *arguments]
        if self.last:
            after = [f"--dependency=afterany:{':'.join(jobs)}"]
            arguments = [*self.last_options, *after, str(self.place / COMMAND_SCRIPT), *self.last]
            yield self.place, ["sbatch", "--parsable", *arguments]

    def lines(self) -> Iterator[str]:
        """Yields what a person reads before it is submitted."""
        for path, text in self.files.items():
            yield f"# {path}\n{text.rstrip()}\n"
        jobs: list[str] = []
        for _, command in self.commands(jobs):
            yield shlex.join(command)
            jobs.append("JOB")


def prepare(
    sweep: Sweep, jobs: int | None, last: Sequence[str] = (), after_trial: Sequence[str] = ()
) -> ArraySubmission:
    """Returns what `submit` will do for the trials that are not done, `jobs` at a time (None: as many as SLURM starts),
    and for a job with the arguments `last` of the program after them; `after_trial` are those that each task runs at
    its end. Touches nothing. Raises ConfigError where SLURM is asked for other ranks than the study counts on, or for
    jobs that could not train.
    """
    config = sweep.trials[0].config
    config = replace(config, slurm=replace(config.slurm, continuation="requeue"))  # a task resumes as itself
    ranks = config.slurm.nodes * config.slurm.ranks
    if ranks != sweep.study.nproc:
        raise ConfigError(
            f"nproc={sweep.study.nproc}: slurm.nodes={config.slurm.nodes} has {ranks} ranks for each cell; change one "
            "of them"
        )
    ConfigError.raise_all(layout_problems(config))
    place = next_place(RunDir(sweep.folder).slurm.resolve())
    options = _options(sweep, config)
    without = ["--nodes=", "--signal=", "--output="]
    if last[:1] == ["slurm"] or (last[:2] == ["scaling", "collect"] and "--missing" not in last):  # no GPU works for it
        without += ["--gpus-", "--gres=", "--cpus-per-gpu="]
    alone = [argument for argument in options if not argument.startswith(tuple(without))]
    alone += ["--nodes=1", f"--output={output(RunDir(sweep.folder), '%j.out')}"]
    files = {place / name: text for name, text in scripts(COMMAND_SCRIPT, config, alone).items()} if last else {}
    if after_trial:
        files[place / AFTER_TRIAL] = json.dumps(list(after_trial)) + "\n"
    submission = ArraySubmission(place, [], files, jobs_before(config.slurm), list(last), alone)
    branches = [trial for trial in sweep.left if trial.trunk]
    _add(submission, sweep, config, jobs, "scratch", [trial for trial in sweep.left if not trial.trunk])
    _add(submission, sweep, config, jobs, "branches", branches)
    return submission


def _add(
    submission: ArraySubmission, sweep: Sweep, config: Config, jobs: int | None, name: str, trials: Sequence[Trial]
) -> None:
    """An array for each number of ranks that these trials need, or several where the site's arrays are smaller; all
    wait for the arrays that are there, and with a limit of `jobs` for one another.
    """
    command, most = sweep.target.rpartition(":")[2], f"%{jobs}" if jobs else ""  # pretrain or finetune
    needed = {trial: sweep.ranks_needed(trial) for trial in trials}
    before, largest = len(submission.arrays), array_limit()
    for ranks in sorted(set(needed.values())):
        those = [trial for trial in trials if needed[trial] == ranks]
        fitted, place = config, submission.place
        if ranks != sweep.study.nproc:
            fitted, place = _on(config, ranks), submission.place / f"ranks-{ranks}"
        options = _options(sweep, fitted)
        submission.files.update({place / part: text for part, text in scripts(SCRIPT, fitted, options).items()})
        for part, first in enumerate(range(0, len(those), largest)):
            some = those[first : first + largest]
            manifest = place / f"{name}{f'-{part}' if part else ''}.jsonl"
            after = len(submission.arrays) if jobs else before
            array = [*options, f"--array=0-{len(some) - 1}{most}"]
            submission.arrays.append(Array(some, place, manifest, array, after))
            configs = {place / "cells" / f"{_name(sweep, one)}.yaml": to_yaml(_on(one.config, ranks)) for one in some}
            submission.files[manifest] = "".join(json.dumps([command, "-c", str(path)]) + "\n" for path in configs)
            submission.files.update(configs)


def _options(sweep: Sweep, config: Config) -> list[str]:
    """Returns the options of sbatch for an array of cells like this one."""
    folder = RunDir(sweep.folder)
    options = [argument for argument in sbatch_options(config, folder) if not argument.startswith(RUNS_ONE_BY_ONE)]
    return [*options, f"--job-name={sweep.study.name}", f"--output={output(folder, '%A_%a.out')}"]


def _on(config: Config, ranks: int) -> Config:
    """Returns the same, asking SLURM for so many ranks: whole nodes, or a part of one."""
    slurm = config.slurm
    if ranks == slurm.nodes * slurm.ranks:
        return config
    nodes = max(1, ranks // slurm.ranks)
    kind, on_node = str(slurm.gpus_per_node).rpartition(":")[0], ranks // nodes
    gpus: int | str = f"{kind}:{on_node}" if kind else on_node
    asked = {"gpus_per_node": gpus} if slurm.gpus else {"ranks_per_node": on_node}
    return replace(config, slurm=replace(slurm, nodes=nodes, **asked))


def _name(sweep: Sweep, trial: Trial) -> str:
    """Returns the trial's place in the folder of its sweep, as the name of a file."""
    return trial.run_dir.path.relative_to(sweep.folder).as_posix().replace("/", "--")


def start(
    sweep: Sweep, jobs: int | None, last: Sequence[str], after_trial: Sequence[str], dry_run: bool
) -> tuple[list[str], list[str]]:
    """Returns (the numbers of the jobs, lines for a person) of the cells that are not done, submitted as `prepare`
    says. With `dry_run`, and where all cells are done, no job is submitted.
    """
    submission = prepare(sweep, jobs, last, after_trial)
    if not submission.arrays:
        return [], [f"{sweep.folder}: all cells are done{sweep.early_ends}"]
    if dry_run:
        return [], list(submission.lines())
    sweep.check()
    numbers, most = submit(sweep, submission), f", {jobs} at a time" if jobs else ""
    lines = [
        f"job {number}: {amount(len(array.trials), 'cell')}{most}: {array.manifest}"
        for number, array in zip(numbers, submission.arrays, strict=False)  # the last job is no array
    ]
    return numbers, [*lines, *([f"job {numbers[-1]}, then: gpt1-ds {shlex.join(last)}"] if last else [])]


def submit(sweep: Sweep, submission: ArraySubmission) -> list[str]:
    """Returns the arrays' numbers, and the last job's. Raises LaunchError where SLURM is not here or already has this
    study.
    """
    require_sbatch()
    RunDir(sweep.folder).create(sweep.trials[0].config.run.share, job=True)
    with RunLock(sweep.folder / ".lock", LOCK_SECONDS):  # who submits at the same time, or runs the study here
        return _submit(sweep, submission)


def _submit(sweep: Sweep, submission: ArraySubmission) -> list[str]:
    """Returns what `submit` does, once nobody else does."""
    own = set(jobs_of(RunDir(sweep.folder))) - {os.environ.get("SLURM_JOB_ID")}  # which submits the next stage
    named = call(["squeue", "--noheader", f"--name={sweep.study.name}", "--format=%F"], {}, LaunchError).split()
    if queued := [job for job in named if job in own]:  # others are of a study of this name elsewhere
        raise LaunchError(
            f"{sweep.folder}: job {queued[0]} of this study waits or runs, and would run its cells twice; wait for "
            f"it, or scancel {queued[0]}"
        )
    first = submission.arrays[0]
    for path, text in submission.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    test = ["sbatch", "--test-only", *first.options, str(first.place / SCRIPT), str(first.manifest)]
    call(test, {}, ConfigError)
    jobs: list[str] = []
    for place, command in submission.commands(jobs):
        answer = call(command, {"GPT1_DS_LAUNCH": str(place)}, LaunchError)
        job = answer.strip().partition(";")[0]
        arguments = [SCRIPT, str(submission.arrays[len(jobs)].manifest)] if len(jobs) < len(submission.arrays) else None
        note_submission(RunDir(sweep.folder), job, submission.after, arguments or submission.last)
        jobs.append(job)
    write_json(RunDir(sweep.folder).study, sweep.describe())
    return jobs
