"""From a configuration to a job: what it asks SLURM for, the settings that its script is given; the run folder gets
everything the job needs, sbatch tries it, then takes it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt1_ds.common.errors import ConfigError, LaunchError
from gpt1_ds.common.files import shipped, write_atomic
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, to_yaml
from gpt1_ds.config.slurm import SlurmConfig


def sbatch_options(config: Config, run_dir: RunDir) -> list[str]:
    """Options of sbatch, one word each: nothing here passes through a shell."""
    slurm = config.slurm
    tasks = slurm.ranks if slurm.launcher == "srun" else 1
    values = {
        "job-name": config.run.name,
        "output": f"{run_dir.slurm.resolve()}/%j.out",
        "nodes": slurm.nodes,
        "ntasks-per-node": tasks,
        "cpus-per-task": slurm.cpus_per_task,
        "gpus-per-node": slurm.gpus_per_node or None,
        "cpus-per-gpu": slurm.cpus_per_gpu if slurm.gpus_per_node and slurm.cpus_per_task is None else None,
        "time": slurm.time,
        "signal": f"B:USR1@{slurm.warning}",
        "account": slurm.account,
        "partition": slurm.partition,
        "qos": slurm.qos,
        "mem": slurm.memory,
        "constraint": slurm.constraint,
        "exclude": slurm.exclude,
    }
    words = [f"--{name}={value}" for name, value in values.items() if value is not None]
    if slurm.exclusive:
        words.append("--exclusive")
    # singleton: jobs of one run come one after another
    return [*words, "--dependency=singleton", "--open-mode=append", "--requeue", "--export=ALL", *slurm.options]


def job_settings(config: Config, options: Sequence[str]) -> Iterator[str]:
    """Lines of the file that launch/env.sh reads: assignments whose values are quoted, and the user's own `setup`."""
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
    for name in ("max_tries", "pause", "poor_tries", "warning"):
        yield f"{name}={getattr(slurm, name)}"
    yield f"health_check={int(slurm.health_check)}"
    for name, value in slurm.environment.items():
        yield f"export {name}={shlex.quote(str(value))}"


def _array(name: str, words: Sequence[str]) -> str:
    return f"{name}=({' '.join(shlex.quote(word) for word in words)})"


def _prefix(slurm: SlurmConfig) -> list[str]:
    """What stands before `python` on a node."""
    if slurm.container is None or slurm.container_runtime != "apptainer":
        return []
    mounts = [word for mount in slurm.container_mounts for word in ("--bind", mount)]
    gpus = ["--nv"] if slurm.gpus_per_node else []
    return ["apptainer", "exec", *gpus, "--pwd", str(Path.cwd()), "--bind", str(Path.cwd()), *mounts, slurm.container]


def _step_options(slurm: SlurmConfig) -> list[str]:
    """Options of every srun."""
    if slurm.container is None or slurm.container_runtime != "pyxis":
        return []
    here = str(Path.cwd())
    mounts = ",".join([f"{here}:{here}", *slurm.container_mounts])
    return [f"--container-image={slurm.container}", f"--container-mounts={mounts}", f"--container-workdir={here}"]


SCRIPTS = shipped("launch")
COMMANDS = ("pretrain", "finetune")  # what a job may run


@dataclass(frozen=True)
class JobSubmission:
    """Files to write into `place`, a folder of its own, so that jobs that wait already keep theirs."""

    run_dir: RunDir
    place: Path
    script: str
    options: list[str]
    files: dict[str, str]

    def command(self, *more: str) -> list[str]:
        return ["sbatch", *more, *self.options, str(self.place / self.script), "-c", str(self.place / "config.yaml")]


def prepare(command: str, config: Config) -> JobSubmission:
    """What `submit` will do; touches nothing."""
    run_dir = RunDir(Path(config.run.dir) / config.run.name)
    options = sbatch_options(config, run_dir)
    script = f"{command}.sbatch"
    files = {**scripts(script, config, options), "config.yaml": to_yaml(config)}
    return JobSubmission(run_dir, next_place(run_dir.slurm), script, options, files)


def next_place(slurm: Path) -> Path:
    """The folder of a submission, numbered above all that `slurm` holds."""
    numbers = [path.name.removeprefix("submission-") for path in slurm.glob("submission-*")]
    return slurm.resolve() / f"submission-{1 + max((int(x) for x in numbers if x.isdecimal()), default=0)}"


def scripts(script: str, config: Config, options: Sequence[str]) -> dict[str, str]:
    """Name -> text of a launch script and of what it reads."""
    return {
        **{name: (SCRIPTS / name).read_text() for name in (script, "env.sh", "life.sh", "next.sh")},
        "job.sh": "\n".join(job_settings(config, options)) + "\n",
    }


def layout_problems(config: Config) -> Iterator[str]:
    """What SLURM would accept and the ranks would not."""
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
    """The job's number. Raises ConfigError when SLURM would never run such a job, LaunchError when it takes none."""
    require_sbatch()
    call(["sbatch", "--test-only", *submission.options, str(SCRIPTS / submission.script)], {}, ConfigError)
    submission.run_dir.create(share, job=True)
    submission.place.mkdir()
    for name, text in submission.files.items():
        write_atomic(submission.place / name, text)
    answer = call(submission.command("--parsable"), {"GPT1_DS_LAUNCH": str(submission.place)}, LaunchError)
    return answer.strip().partition(";")[0]


def require_sbatch() -> None:
    if shutil.which("sbatch") is None:
        raise LaunchError("sbatch is not here; submit on a host of the cluster, or look with --dry-run")


def call(command: list[str], variables: dict[str, str], error: type[ConfigError] | type[LaunchError]) -> str:
    """What one of SLURM's commands prints; `error` with what it says when it fails."""
    # without what a surrounding job (an interactive one, say) would hand down to the new one as its options
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    ours = {name: x for name, x in os.environ.items() if name in kept or not name.startswith(("SBATCH_", "SLURM_"))}
    environment = {**ours, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise error(f"{' '.join(done.stderr.split())}; see the keys slurm.*")
    return done.stdout
