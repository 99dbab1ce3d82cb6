"""What a job assumes of a site, beside what the site's SLURM says of itself. No job is asked for."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpt1_ds.common.errors import LaunchError
from gpt1_ds.common.text import amount
from gpt1_ds.config.slurm import SlurmConfig, seconds_of
from gpt1_ds.slurm.submit import call

_GRES = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?:(\d+)")
USUAL_ARRAY = 1001  # MaxArraySize unless a site says another one
_COLUMNS = ("%R", "%a", "%l", "%G", "%D", "%c")  # of sinfo: a line for nodes of one kind


@dataclass(frozen=True)
class Nodes:
    """Nodes of one kind in one partition."""

    partition: str
    up: bool
    limit: int | None  # seconds of a job; None: none
    gpus: dict[str, int]  # type (empty: it has no name) -> number of each node
    number: int
    cores: int

    def fit(self, slurm: SlurmConfig) -> bool:
        """Returns whether a node of the job can be one of these."""
        kind = str(slurm.gpus_per_node).rpartition(":")[0]
        gpus = self.gpus.get(kind, 0) if kind else max(self.gpus.values(), default=0)
        tasks = slurm.ranks if slurm.launcher == "srun" else 1
        cores = slurm.cpus_per_task * tasks if slurm.cpus_per_task else slurm.cpus_per_gpu * slurm.gpus or tasks
        return gpus >= slurm.gpus and self.cores >= cores

    def __str__(self) -> str:
        gpus = ", ".join(f"{number} GPUs{f' {kind}' * bool(kind)}" for kind, number in self.gpus.items())
        return f"{amount(self.number, 'node')} of {amount(self.cores, 'core')}{f' and {gpus}' if gpus else ''}"


@dataclass(frozen=True)
class Finding:
    """One assumption. `holds` is None for what a person should know."""

    holds: bool | None
    text: str

    def __str__(self) -> str:
        return f"{ {True: 'ok', False: 'NO', None: 'note'}[self.holds]:<5} {self.text}"


def assumptions(slurm: SlurmConfig) -> Iterator[Finding]:
    """Yields a line for each assumption. Raises LaunchError where SLURM does not answer."""
    nodes = list(_nodes(call(["sinfo", "--noheader", f"--format={'|'.join(_COLUMNS)}"], {}, LaunchError)))
    settings = _settings()
    yield Finding(None, f"SLURM {settings.get('SLURM_VERSION', 'of an unknown version')}")
    yield from _partition(slurm, nodes)
    yield from _life(slurm, settings)
    yield from _container(slurm)


def _nodes(text: str) -> Iterator[Nodes]:
    for line in text.splitlines():
        name, up, limit, gres, number, cores = line.split("|")
        gpus: dict[str, int] = {}
        for kind, many in _GRES.findall(gres):
            gpus[kind] = gpus.get(kind, 0) + int(many)
        numbers = (int(re.sub(r"\D.*", "", one) or 0) for one in (number, cores))  # 64+: at least
        yield Nodes(name, up == "up", seconds_of(limit) if limit[:1].isdigit() else None, gpus, *numbers)


def _settings() -> dict[str, str]:
    """Returns what `scontrol show config` says. Raises LaunchError where SLURM does not answer."""
    lines = (line.partition("=") for line in call(["scontrol", "show", "config"], {}, LaunchError).splitlines())
    return {name.strip(): value.strip() for name, equals, value in lines if equals}


def array_limit() -> int:
    """Returns how many tasks an array may have; where SLURM does not say it, as many as it usually does."""
    if shutil.which("scontrol") is None:
        return USUAL_ARRAY
    try:
        return max(1, int(_settings().get("MaxArraySize", USUAL_ARRAY)))
    except (LaunchError, ValueError):
        return USUAL_ARRAY


def _partition(slurm: SlurmConfig, nodes: Sequence[Nodes]) -> Iterator[Finding]:
    """Yields what the nodes have that the job may run on."""
    names = dict.fromkeys(one.partition for one in nodes)
    found = [one for one in nodes if slurm.partition in (None, one.partition)]
    if slurm.partition is not None:
        yield Finding(bool(found), f"slurm.partition={slurm.partition}: {'; '.join(map(str, found)) or _choose(names)}")
    if not found:
        return
    if not any(one.up for one in found):
        yield Finding(False, f"slurm.partition={slurm.partition}: is down; choose another")
    fitting = [one for one in found if one.fit(slurm)]
    asked = f"slurm.gpus_per_node={slurm.gpus_per_node}"
    kinds = sorted({kind for one in fitting for kind in one.gpus if kind})
    if not fitting:
        there = "; ".join(dict.fromkeys(map(str, found)))
        yield Finding(False, f"{asked} and its cores: no node has so many; there are {there}")
    elif slurm.gpus and len(kinds) > 1 and ":" not in str(slurm.gpus_per_node):
        yield Finding(None, f"{asked}: may be any of {', '.join(kinds)}; name one, like {kinds[0]}:{slurm.gpus}")
    elif slurm.gpus:
        yield Finding(True, f"{asked}: {'; '.join(map(str, fitting))}")
    many = max((sum(one.number for one in fitting if one.partition == name) for name in names), default=0)
    if fitting:
        asked = f"slurm.nodes={slurm.nodes}" + f" and slurm.spare_nodes={slurm.spare_nodes}" * bool(slurm.spare_nodes)
        yield Finding(many >= slurm.all_nodes, f"{asked}: {many} such nodes are in one partition")
    if slurm.cost_of_spares:
        yield Finding(None, slurm.cost_of_spares)
    limits = [one.limit for one in fitting or found]
    longest = None if None in limits else max(one for one in limits if one is not None)
    fits = longest is None or slurm.seconds <= longest
    allowed = "any time" if longest is None else f"{longest} s at most"
    yield Finding(fits, f"slurm.time={slurm.time}: {slurm.seconds} s; the partition allows {allowed}")


def _choose(names: Sequence[str] | dict[str, None]) -> str:
    return f"is not there; choose {', '.join(names) or 'another'}"


def _life(slurm: SlurmConfig, settings: dict[str, str]) -> Iterator[Finding]:
    """Yields what happens to a job that waits, ends, or is ended."""
    requeues = settings.get("JobRequeue", "1") == "1"
    if slurm.requeue and not requeues:
        yield Finding(False, "slurm.requeue=true: this site requeues no job (JobRequeue=0); set slurm.requeue=false")
    else:
        yield Finding(True, f"slurm.requeue={str(slurm.requeue).lower()}: JobRequeue={settings.get('JobRequeue', '1')}")
    largest = settings.get("MaxArraySize", USUAL_ARRAY)
    yield Finding(None, f"MaxArraySize={largest}: a study of more cells has several arrays")
    wait = settings.get("KillWait", "30 sec")
    yield Finding(None, f"KillWait={wait}: a job that is cancelled has this long to save")
    preempts, mailer = settings.get("PreemptMode", "OFF"), settings.get("MailProg", "mail")
    if preempts != "OFF":
        yield Finding(None, f"PreemptMode={preempts}: a job may be preempted by another one")
    if settings.get("AccountingStorageType", "").endswith("none"):
        age = settings.get("MinJobAge", "300 sec")
        yield Finding(
            None, f"no accounting: `slurm status` knows a job for {age} after its end, and its outcome always"
        )
    if slurm.mail and shutil.which(mailer) is None:
        yield Finding(None, f"slurm.mail={slurm.mail}: this host has no MailProg={mailer}; ask the site")


def _container(slurm: SlurmConfig) -> Iterator[Finding]:
    """Returns whether the site starts containers as it is asked to."""
    if slurm.container is None:
        return
    name = slurm.container_runtime
    if name == "pyxis":
        usage = subprocess.run(["srun", "--help"], capture_output=True, text=True, check=False).stdout
        there, way = "--container-image" in usage, "srun has no --container-image; choose another runtime"
    else:
        there, way = shutil.which(name) is not None, f"{name} is not on this host; choose another runtime"
    yield Finding(there, f"slurm.container_runtime={name}: {'it is here' if there else way}")
