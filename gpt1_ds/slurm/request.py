"""What a job asks SLURM for, and the settings that its script is given."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config
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
