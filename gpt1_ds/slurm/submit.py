"""From a configuration to a job: what it asks SLURM for, the settings that its script is given; the run folder gets
everything the job needs, sbatch tries it, then takes it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import ConfigError, LaunchError
from gpt1_ds.common.files import shipped, write_atomic
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, to_yaml
from gpt1_ds.config.slurm import SlurmConfig
from gpt1_ds.slurm import status

_JOB = re.compile(r"\d+(_\d+)?")


NO_CONTROLLER = ("unable to contact slurm controller", "unable to establish", "connection refused", "timed out")
OF_A_JOB = (  # how the variables of one job begin: SLURM's, and those that its scripts (launch/) set
    *("SBATCH_", "SLURM_", "GPT1_DS_AVOID", "GPT1_DS_CONTINUES", "GPT1_DS_DEADLINE", "GPT1_DS_FAULTS", "GPT1_DS_RUN"),
    *("GPT1_DS_STAGE", "GPT1_DS_STORE"),
)
KEPT = (  # what no job sets: of the site, and what a person's profile says in the place of slurm.account and the like
    *("SLURM_CONF", "SLURM_CLUSTERS"),
    *("SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION"),
)
MAILS = "END,FAIL"  # of the last job of a run


def output(run_dir: RunDir, name: str) -> str:
    """Returns the file `name` of a run's slurm/ as sbatch reads it: a % of the folder begins no replacement symbol."""
    return f"{str(run_dir.slurm.resolve()).replace('%', '%%')}/{name}"


def sbatch_options(config: Config, run_dir: RunDir) -> list[str]:
    """Returns the options of sbatch, one argument each: nothing here passes through a shell."""
    slurm = config.slurm
    tasks = slurm.ranks if slurm.launcher == "srun" else 1
    values = {
        "job-name": config.run.name,
        "output": output(run_dir, "%j.out"),
        "nodes": slurm.all_nodes,
        "ntasks-per-node": tasks,
        "cpus-per-task": slurm.cpus_per_task,
        **_gpus(slurm, tasks),
        "time": slurm.time,
        "signal": f"B:USR1@{slurm.warning}",
        "account": slurm.account,
        "partition": slurm.partition,
        "qos": slurm.qos,
        "mem": slurm.memory,
        "constraint": slurm.constraint,
        "exclude": slurm.exclude,
        "mail-user": slurm.mail,
        "mail-type": slurm.mail and MAILS,
    }
    arguments = [f"--{name}={value}" for name, value in values.items() if value is not None]
    if slurm.exclusive:
        arguments.append("--exclusive")
    if slurm.spare_nodes:
        arguments.append("--no-kill")  # SLURM leaves the job alone when it loses a node
    requeue = "--requeue" if slurm.requeue else "--no-requeue"
    # singleton: jobs of one run come one after another
    return [*arguments, "--dependency=singleton", "--open-mode=append", requeue, "--export=ALL", *slurm.options]


def _gpus(slurm: SlurmConfig, tasks: int) -> dict[str, Any]:
    """Returns the options that ask for GPUs, and for cores with them, in the way that the site knows."""
    if not slurm.gpus:
        return {}
    kind = str(slurm.gpus_per_node).rpartition(":")[0]
    of_task = f"{kind}:{slurm.gpus // tasks}" if kind else slurm.gpus // tasks
    values: dict[str, Any] = {
        **{"gpus-per-node": slurm.gpus_per_node, "gpus-per-task": of_task},
        "gres": f"gpu:{slurm.gpus_per_node}",
    }
    asked: dict[str, Any] = {slurm.gpus_by: values[slurm.gpus_by]}
    if slurm.cpus_per_task is not None:
        return asked
    if slurm.gpus_by == "gpus-per-node":
        return {**asked, "cpus-per-gpu": slurm.cpus_per_gpu}
    return {**asked, "cpus-per-task": slurm.cpus_per_gpu * slurm.gpus // tasks}


def job_settings(config: Config, options: Sequence[str]) -> Iterator[str]:
    """Yields the lines of the file that launch/env.sh reads: assignments whose values are quoted, and the user's own
    `setup`.
    """
    slurm = config.slurm
    yield "# Written by `gpt1-ds slurm submit`; read by env.sh beside it."
    for number, line in enumerate(slurm.setup, 1):
        yield from (line, f"setup_line $? {number}")
    yield _array("options", options)
    yield _array("python", ["python"] if slurm.setup or slurm.container else [sys.executable])
    yield _array("prefix", _prefix(slurm))
    yield _array("step_options", _step_options(slurm))
    yield f"continuation={slurm.continuation}"
    yield f"stage_to={shlex.quote(slurm.stage_to or '')}"
    yield f"ranks_per_node={slurm.ranks}"
    yield f"launcher={slurm.launcher}"
    yield f"mails={MAILS if slurm.mail else ''}"
    for name in ("max_tries", "pause", "poor_tries", "restarts", "warning", "spare_nodes"):
        yield f"{name}={getattr(slurm, name)}"
    yield f"health_check={int(slurm.health_check)}"
    for name, value in slurm.environment.items():
        yield f"export {name}={shlex.quote(str(value))}"


def _array(name: str, arguments: Sequence[str]) -> str:
    return f"{name}=({' '.join(shlex.quote(argument) for argument in arguments)})"


_ENROOT = """for name in $(compgen -e); do
  case $name in PATH|HOME|LD_*|PYTHON*|SHELL|TMPDIR|_) ;; *) set -- --env "$name" "$@" ;; esac
done
exec enroot start "$@\""""  # an image has the variables of its own only, and no option names a working folder


def _prefix(slurm: SlurmConfig) -> list[str]:
    """Returns what stands before `python` on a node."""
    runtime, here = slurm.container_runtime, str(Path.cwd())
    if slurm.container is None or runtime == "pyxis":
        return []
    if runtime == "podman":  # the host's network, memory and variables: ranks meet there
        shared = ["--network=host", "--ipc=host", "--pid=host", "--userns=keep-id", "--env-host"]
        mounts = [f"--volume={mount}" for mount in (f"{here}:{here}", *slurm.container_mounts)]
        gpus = ["--device=nvidia.com/gpu=all"] if slurm.gpus else []
        return ["podman", "run", "--rm", *shared, *gpus, f"--workdir={here}", *mounts, slurm.container]
    if runtime == "enroot":
        mounts = [argument for mount in (f"{here}:{here}", *slurm.container_mounts) for argument in ("--mount", mount)]
        return ["bash", "-c", _ENROOT, runtime, *mounts, slurm.container, "sh", "-c", 'cd "$0" && exec "$@"', here]
    mounts = [argument for mount in slurm.container_mounts for argument in ("--bind", mount)]
    gpus = ["--nv"] if slurm.gpus else []
    return [runtime, "exec", *gpus, "--pwd", here, "--bind", here, *mounts, slurm.container]


def _step_options(slurm: SlurmConfig) -> list[str]:
    """Returns the options of every srun."""
    if slurm.container is None or slurm.container_runtime != "pyxis":
        return []
    here = str(Path.cwd())
    mounts = ",".join([f"{here}:{here}", *slurm.container_mounts])
    return [f"--container-image={slurm.container}", f"--container-mounts={mounts}", f"--container-workdir={here}"]


SCRIPTS = shipped("launch")
TRAINING = ("pretrain", "finetune")  # commands whose jobs are of a run, and continue one another
JOBS = "jobs"  # the folder, below run.dir, of all other jobs
COMMAND_SCRIPT = "command.sbatch"
PARTS = ("env.sh", "nodes.sh", "stage.sh", "watch.sh", "life.sh", "next.sh")  # of every script


@dataclass(frozen=True)
class JobSubmission:
    """Files to write into `place`, a folder of its own, so that jobs that wait already keep theirs."""

    run_dir: RunDir
    place: Path
    script: str
    options: list[str]
    files: dict[str, str]
    arguments: list[str]  # what the script is given
    after: list[str]  # jobs that must end well before

    def command(self, *more: str) -> list[str]:
        return ["sbatch", *more, *self.options, *self._waiting(), str(self.place / self.script), *self.arguments]

    def _waiting(self) -> Iterator[str]:
        """The last --dependency counts. What the job waits for may fail: SLURM then removes the job."""
        if self.after:
            own = "singleton," if "--dependency=singleton" in self.options else ""
            yield from (f"--dependency={own}afterok:{':'.join(self.after)}", "--kill-on-invalid-dep=yes")


def prepare(command: str, config: Config, written: Written | None = None) -> JobSubmission:
    """Returns what `submit` will do for a run; touches nothing. The job reads the resolved `config`; where something it
    begins with is still to be made by an earlier job, it reads what was `written`.
    """
    run_dir = RunDir(Path(config.run.dir) / config.run.name)
    place, options, script = next_place(run_dir.slurm), sbatch_options(config, run_dir), f"{command}.sbatch"
    files = scripts(script, config, options)
    if written is None:
        files["config.yaml"] = to_yaml(config)
        arguments = ["-c", str(place / "config.yaml")]
    else:
        arguments = list(written.overrides)
        for number, name in enumerate(written.files):
            if Path(name).is_file():
                files[f"{number}.yaml"] = Path(name).read_text(encoding="utf-8")
                name = str(place / f"{number}.yaml")
            arguments += ["-c", name]
    return JobSubmission(run_dir, place, script, options, files, arguments, jobs_before(config.slurm))


@dataclass(frozen=True)
class Written:
    """The configuration of a run as its user gave it."""

    files: Sequence[str]
    overrides: Sequence[str]


def prepare_command(arguments: Sequence[str], config: Config) -> JobSubmission:
    """Returns what `submit` will do for a command that is no run: one job of one node. Touches nothing."""
    if config.slurm.requeue:  # its job keeps its number: what follows it waits on
        config = replace(config, slurm=replace(config.slurm, continuation="requeue"))
    run_dir = RunDir(Path(config.run.dir) / JOBS)
    left_out = ["--dependency=", "--job-name="]  # of a run's jobs, which come one after another
    if config.slurm.seconds < 2 * config.slurm.warning:  # it would be asked to end as it begins
        left_out.append("--signal=")
    options = [option for option in sbatch_options(config, run_dir) if not option.startswith(tuple(left_out))]
    options.append(f"--job-name={'-'.join(command_name(arguments))}")
    files = scripts(COMMAND_SCRIPT, config, options)
    place = next_place(run_dir.slurm)
    return JobSubmission(run_dir, place, COMMAND_SCRIPT, options, files, list(arguments), jobs_before(config.slurm))


def command_name(arguments: Sequence[str]) -> Sequence[str]:
    """Returns the command, or the group and the command: data build."""
    return arguments[: 2 if len(arguments) > 1 and re.fullmatch("[a-z]+", arguments[1]) else 1]


def jobs_before(slurm: SlurmConfig) -> list[str]:
    """Returns the numbers of the jobs of `slurm.after`; of a run its latest. Raises ConfigError for a run without
    jobs.
    """
    found = []
    for one in slurm.after:
        if _JOB.fullmatch(one):
            found.append(one)
            continue
        jobs = status.jobs(RunDir(Path(one)))
        if not jobs:
            raise ConfigError(
                f"slurm.after={one}: is no job, and no folder of a run that was submitted; name a job's number"
            )
        found.append(jobs[-1])
    return found


def next_place(slurm: Path) -> Path:
    """Returns the folder of a submission, numbered above all that `slurm` holds."""
    numbers = [path.name.removeprefix("submission-") for path in slurm.glob("submission-*")]
    return slurm.resolve() / f"submission-{1 + max((int(x) for x in numbers if x.isdecimal()), default=0)}"


def scripts(script: str, config: Config, options: Sequence[str]) -> dict[str, str]:
    """Returns name -> text of a launch script and of what it reads."""
    return {
        **{name: (SCRIPTS / name).read_text(encoding="utf-8") for name in (script, *PARTS)},
        "job.sh": "\n".join(job_settings(config, options)) + "\n",
    }


def layout_problems(config: Config) -> Iterator[str]:
    """Yields what SLURM would accept and the ranks would not."""
    ranks = config.slurm.ranks
    if config.parallel.tensor > ranks:
        yield (
            f"parallel.tensor={config.parallel.tensor} reaches over nodes of {ranks} ranks, where it is slow beyond "
            f"use; use parallel.tensor={ranks} or less, or more slurm.gpus_per_node"
        )
    seconds, warning = config.slurm.seconds, config.slurm.warning
    if seconds < 2 * warning:
        yield (
            f"slurm.time={config.slurm.time} leaves {max(0, seconds - warning)} s of each job before "
            f"slurm.warning={warning} (seconds before its end) asks it to save and hand over; give it {2 * warning} s "
            f"or more, or slurm.warning={max(1, seconds // 4)}"
        )


def submit(submission: JobSubmission, share: str) -> str:
    """Returns the job's number. Raises ConfigError where SLURM would never run such a job, LaunchError for no job."""
    require_sbatch()
    call(["sbatch", "--test-only", *submission.options, str(SCRIPTS / submission.script)], {}, ConfigError)
    if submission.script == COMMAND_SCRIPT:
        submission.run_dir.create_for_jobs(share)
    else:
        submission.run_dir.create(share, job=True)
    submission = _made(submission)
    for name, text in submission.files.items():
        write_atomic(submission.place / name, text)
    answer = call(submission.command("--parsable"), {"GPT1_DS_LAUNCH": str(submission.place)}, LaunchError)
    job = answer.strip().partition(";")[0]
    alone = submission.arguments if submission.script == COMMAND_SCRIPT else []
    status.note_submission(submission.run_dir, job, submission.after, alone)
    return job


def _made(submission: JobSubmission) -> JobSubmission:
    """Returns the submission with its folder made: a free one, where somebody who submitted at the same time has made
    its.
    """
    while True:
        try:
            submission.place.mkdir()
            return submission
        except FileExistsError:
            place, taken = next_place(submission.run_dir.slurm), f"{submission.place}/"
            arguments = [
                f"{place}/{one.removeprefix(taken)}" if one.startswith(taken) else one for one in submission.arguments
            ]
            submission = replace(submission, place=place, arguments=arguments)


def require_sbatch() -> None:
    if shutil.which("sbatch") is None:
        raise LaunchError("sbatch is not here; submit on a host of the cluster, or look with --dry-run")


def environment() -> dict[str, str]:
    """Returns the variables of this process without what a surrounding job (an interactive one, say) would hand down to
    a new one: its options, its deadline.
    """
    return {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(OF_A_JOB)}


def call(command: list[str], variables: dict[str, str], error: type[ConfigError] | type[LaunchError]) -> str:
    """Returns what one of SLURM's commands prints; `error` with what it says when it fails."""
    ours = {**environment(), **variables}
    done = subprocess.run(command, env=ours, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split())
        if any(text in said.lower() for text in NO_CONTROLLER):
            raise error(
                f"{said}: SLURM's controller does not answer; try `sinfo`, ask who runs the cluster, or look with "
                "--dry-run"
            )
        raise error(f"{said}; see the keys slurm.*")
    return done.stdout
