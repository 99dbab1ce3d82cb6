"""The job that a run is submitted as. Values reach sbatch and srun as single arguments, never through a shell, except
`setup`, which is a shell's lines by nature and comes from the user's own cluster file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

CORES_PER_RANK = 2  # at least, with a GPU: one starts its kernels, one reads batches and writes checkpoints
_TIME = re.compile(r"(\d+-\d{1,2}(:\d{2}){0,2}|\d+(:\d{2}){1,2})")
_GPUS = re.compile(r"([A-Za-z][\w.-]*:)?\d+")  # [type:]number
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = ("output", "job-name", "dependency", "signal", "array", "parsable", "test-only", "wrap", "export")
Runtime = Literal["pyxis", "enroot", "apptainer", "singularity", "podman"]


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    account: str | None = None  # who pays; null: the user's default
    partition: str | None = None  # null: the cluster's default
    qos: str | None = None  # quality of service; null: the default
    nodes: int = 1  # hosts that ranks run on
    spare_nodes: int = 0  # further hosts of the job, which wait: one takes the place of a host that is lost or bad
    gpus_per_node: int | str = 0  # a number, or one of a type: a100:8; 0: ranks on CPUs
    gpus_by: Literal["gpus-per-node", "gres", "gpus-per-task"] = "gpus-per-node"  # sbatch's option that asks for them
    ranks_per_node: int | None = None  # null: one per GPU, or one where there are none
    cpus_per_gpu: int = 4  # cores asked for with each GPU, where cpus_per_task does not say how many
    cpus_per_task: int | None = None  # cores of a node's launcher task, or of a rank with launcher=srun; null: default
    memory: str | None = None  # of a node, like 200G; null: the partition's default
    time: str = "24:00:00"  # limit of one job: [days-]hours:minutes:seconds; a longer run continues in the next job
    exclusive: bool = False  # whole nodes
    constraint: str | None = None  # node features
    exclude: str | None = None  # hosts to avoid, as `slurm check` names them
    mail: str | None = None  # address that SLURM writes to when the run ends, not each of its jobs; null: nobody
    after: list[str] = field(default_factory=list)  # jobs, or run folders, that must end well before this one starts
    options: list[str] = field(default_factory=list)  # further sbatch options, like --reservation=NAME
    setup: list[str] = field(default_factory=list)  # shell lines that make `python -P -m gpt1_ds` work: modules, conda
    environment: dict[str, str] = field(default_factory=dict)  # of the ranks: NCCL_SOCKET_IFNAME and the like
    launcher: Literal["torchrun", "srun"] = "torchrun"  # one task per node that starts its ranks, or a task per rank
    container: str | None = None  # image; null: none
    container_runtime: Runtime = "pyxis"  # what starts the image: it, enroot, apptainer, singularity or podman
    container_mounts: list[str] = field(default_factory=list)  # HOST:INSIDE pairs; the working folder is always there
    stage_to: str | None = None  # folder on each node's own disk that the data are copied to first; null: read in place
    requeue: bool = True  # SLURM starts a job again that lost a node or was preempted; false where the site forbids it
    health_check: bool = False  # try every node for a minute before training
    warning: int = 300  # seconds before the limit to save and hand over
    continuation: Literal["successor", "requeue", "none"] = "successor"  # how the next job comes about
    jobs: int | None = None  # cells of a study or sweep at a time; null: all that SLURM can start
    restarts: int = 20  # times that a job starts its ranks again after one died, if a step was saved since; 0: none
    max_tries: int = 100  # jobs of one run, continued ones included
    pause: int = 60  # seconds before another try after a fault of the world; doubles with each in a row, up to an hour
    poor_tries: int = 3  # jobs, or restarts, in a row that cost more time than they gain, then no next one; 0: any

    @property
    def gpus(self) -> int:
        """Returns the number of GPUs of each node."""
        given = str(self.gpus_per_node)
        return int(given.rpartition(":")[2]) if _GPUS.fullmatch(given) else 0

    @property
    def ranks(self) -> int:
        """Ranks on each node."""
        return self.ranks_per_node or max(1, self.gpus)

    @property
    def all_nodes(self) -> int:
        """Hosts of the job."""
        return self.nodes + self.spare_nodes

    @property
    def cost_of_spares(self) -> str:
        """Returns in a sentence what spare nodes cost; nothing where there are none."""
        if self.spare_nodes <= 0:
            return ""
        more = f"{100 * self.spare_nodes / self.nodes:.3g} %"
        return (
            f"slurm.spare_nodes={self.spare_nodes}: the job holds {self.all_nodes} nodes and trains on {self.nodes}, "
            f"which costs {more} more node hours; a spare waits until a node is lost"
        )

    @property
    def seconds(self) -> int:
        """Returns the limit of one job."""
        return seconds_of(self.time)

    def problems(self) -> Iterator[str]:
        counts = ("nodes", "ranks_per_node", "cpus_per_gpu", "cpus_per_task", "warning", "jobs", "max_tries", "pause")
        for key in counts:
            value = getattr(self, key)
            if value is not None and value < 1:
                yield f"slurm.{key}={value}: at least 1 is needed"
        cores = (self.cpus_per_task or 0) // (1 if self.launcher == "srun" else self.ranks)
        if self.gpus and self.cpus_per_task is not None and cores < CORES_PER_RANK:
            yield (
                f"slurm.cpus_per_task={self.cpus_per_task} is less than {CORES_PER_RANK} cores for each rank with a "
                "GPU; ask for more, or leave it out for slurm.cpus_per_gpu"
            )
        for key in ("poor_tries", "restarts", "spare_nodes"):
            if getattr(self, key) < 0:
                yield f"slurm.{key}={getattr(self, key)}: 0 or more"
        if self.spare_nodes > 0 and self.restarts == 0:
            yield (
                f"slurm.spare_nodes={self.spare_nodes} is for jobs that start their ranks again; set slurm.restarts "
                "to 1 or more, or leave it out"
            )
        if not _GPUS.fullmatch(str(self.gpus_per_node)):
            yield f"slurm.gpus_per_node={self.gpus_per_node}: write how many, or their type too, like a100:8"
        if self.gpus_by == "gpus-per-task" and self.launcher == "srun":
            yield (
                "slurm.gpus_by=gpus-per-task hides the GPUs of other ranks from each rank of slurm.launcher=srun; use "
                "slurm.launcher=torchrun"
            )
        if self.continuation == "requeue" and not self.requeue:
            yield "slurm.continuation=requeue needs slurm.requeue=true; use slurm.continuation=successor"
        if not _TIME.fullmatch(self.time):
            yield f"slurm.time={self.time!r}: write [days-]hours:minutes:seconds, like 20:00:00 or 2-00:00:00"
        for key in ("account", "partition", "qos", "memory", "constraint", "exclude", "container", "stage_to", "mail"):
            value = getattr(self, key)
            if value is not None and (not value.isprintable() or not value.strip()):
                yield f"slurm.{key}={value!r}: one line of text, or null"
        yield from self._list_problems()

    def _list_problems(self) -> Iterator[str]:
        for option in self.options:
            name = option.lstrip("-").partition("=")[0]
            if not option.startswith("--") or not option.isprintable():
                yield f"slurm.options: {option!r} is no long option; write --name=value"
            elif ours := next((ours for ours in _OURS if ours.startswith(name)), None):  # sbatch takes beginnings, too
                meant = "" if name == ours else f", which may stand for --{ours},"
                yield f"slurm.options: --{name}{meant} is decided here; leave it out, or write another option in full"
        for mount in self.container_mounts:
            if ":" not in mount or "," in mount or not mount.isprintable():
                yield f"slurm.container_mounts: {mount!r}: write HOST:INSIDE"
        for name, value in self.environment.items():
            if not _VARIABLE.fullmatch(name) or "\n" in str(value):
                yield f"slurm.environment: {name!r} is no variable of one line"


def seconds_of(time: str) -> int:
    """Returns [days-]hours:minutes:seconds as SLURM reads it: with days hours come first, without them seconds come
    last.
    """
    days, _, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    missing = [0] * (3 - len(parts))
    hours, minutes, seconds = [*parts, *missing] if days else [*missing, *parts]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
