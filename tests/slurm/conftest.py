"""One sandbox for all tests of this folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import runs
from tools.cluster import NODES, ROOT, STEPS, Cluster

SANDBOX = str(ROOT / "tools" / "slurm_sandbox.sh")


@contextlib.contextmanager
def sandbox_of(nodes: int, folder: Path) -> Iterator[Path]:
    if shutil.which("slurmctld") is None:
        assert "CI" not in os.environ, "CI has SLURM: apt-get install slurm-wlm munge"
        pytest.skip("needs slurm-wlm and munge")
    # jobs take longest, so they get the CPU first (only root may raise a priority; `nice` then only warns)
    command = ["nice", "-n", "-10", "bash", SANDBOX, "up", str(folder)]
    environment = {**os.environ, "SANDBOX_NODES": str(nodes)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120, env=environment)
    yield folder
    subprocess.run(["bash", SANDBOX, "down", str(folder)], check=True, timeout=60)


@contextlib.contextmanager
def cluster_of(found: Cluster) -> Iterator[Cluster]:
    """Its jobs are over at the end."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):  # who looks after jobs has to see them before they end
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    yield found
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, usual)
    for job in found.call("squeue", "--noheader", "--format=%i").split():
        found.call("scancel", job, check=False)
    found.wait(lambda: not found.call("squeue", "--noheader"), seconds=60)


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with sandbox_of(2, tmp_path_factory.mktemp("slurm") / "s") as folder:
        yield folder


@pytest.fixture
def cluster(sandbox: Path, tmp_path: Path, tiny_data: Path) -> Iterator[Cluster]:
    with cluster_of(Cluster(sandbox, tmp_path, tiny_data)) as found:
        yield found


@pytest.fixture(scope="session")
def uninterrupted(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses by step of the same run in one go, on two local ranks."""
    folder = tmp_path_factory.mktemp("local")
    arguments = [*NODES, f"data.path={tiny_data}", f"train.steps={STEPS}", f"run.dir={folder}"]
    assert runs.pretrain(arguments, 2) == 0
    return runs.losses(runs.folder(arguments))
