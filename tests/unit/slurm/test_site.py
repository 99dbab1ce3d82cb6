"""What a site says of itself, as stand-ins for SLURM's commands say it: the sandbox has no GPU and no limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.cli import main
from gpt1_ds.config import load
from gpt1_ds.slurm.site import array_limit, assumptions

SINFO = """main|up|1-00:00:00|(null)|4|32
gpu|up|2-12:00:00|gpu:a100:8(S:0-1),nvme:1|6|64
gpu|up|2-12:00:00|gpu:h100:4|2|48
old|down|30:00|gpu:2|1|16
"""
SCONTROL = """Configuration data as of 2026-11-27T20:00:00
AccountingStorageType   = accounting_storage/slurmdbd
JobRequeue              = {requeue}
KillWait                = 30 sec
MaxArraySize            = 3
PreemptMode             = REQUEUE
SLURM_VERSION           = 24.05.1
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    says(tmp_path, "sinfo", SINFO)
    says(tmp_path, "scontrol", SCONTROL.format(requeue=1))
    return tmp_path


def says(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
    (folder / name).chmod(0o755)


def lines(*arguments: str) -> list[str]:
    return [str(line) for line in assumptions(load([], [f"slurm.{argument}" for argument in arguments]).slurm)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["partition=gpu", "gpus_per_node=a100:8"],
            "ok    slurm.gpus_per_node=a100:8: 6 nodes of 64 cores and 8 GPUs a100",
        ),
        (
            ["partition=gpu", "gpus_per_node=4"],
            "note  slurm.gpus_per_node=4: may be any of a100, h100; name one, like a100:4",
        ),
        (
            ["partition=gpu", "gpus_per_node=h100:8"],
            "NO    slurm.gpus_per_node=h100:8 and its cores: no node has so many;",
        ),
        (
            ["partition=gpu", "gpus_per_node=a100:8", "cpus_per_gpu=16"],
            "NO    slurm.gpus_per_node=a100:8 and its cores",
        ),
        (["partition=gpus"], "NO    slurm.partition=gpus: is not there; choose main, gpu, old"),
        (["partition=old"], "NO    slurm.partition=old: is down; choose another"),
        (["partition=gpu", "nodes=9"], "NO    slurm.nodes=9: 8 such nodes are in one partition"),
        (
            ["partition=gpu", "nodes=8", "spare_nodes=1"],
            "NO    slurm.nodes=8 and slurm.spare_nodes=1: 8 such nodes are in one partition",
        ),
        (
            ["nodes=4", "spare_nodes=1"],
            "note  slurm.spare_nodes=1: the job holds 5 nodes and trains on 4, which costs 25 % more node hours",
        ),
        (["nodes=2", "gpus_per_node=h100:4"], "ok    slurm.nodes=2: 2 such nodes are in one partition"),
        (
            ["partition=main", "time=2-00:00:00"],
            "NO    slurm.time=2-00:00:00: 172800 s; the partition allows 86400 s at most",
        ),
        (["partition=old", "time=30:00"], "ok    slurm.time=30:00: 1800 s; the partition allows 1800 s at most"),
        ([], "note  MaxArraySize=3: a study of more cells has several arrays"),
        ([], "note  PreemptMode=REQUEUE: a job may be preempted by another one"),
        (
            ["container=a.sif", "container_runtime=podman"],
            "NO    slurm.container_runtime=podman: podman is not on this host",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_line_for_each_assumption(site: Path, arguments: list[str], said: str) -> None:
    assert [line for line in lines(*arguments) if line.startswith(said)], "\n".join(lines(*arguments))


def test_a_site_that_requeues_nothing(site: Path) -> None:
    says(site, "scontrol", SCONTROL.format(requeue=0))
    refused = "NO    slurm.requeue=true: this site requeues no job (JobRequeue=0); set slurm.requeue=false"
    assert refused in lines()
    assert "ok    slurm.requeue=false: JobRequeue=0" in lines("requeue=false")


def test_arrays_are_no_larger_than_the_site_allows(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert array_limit() == 3
    monkeypatch.chdir(site)
    sweep = ["pretrain", "--sweep", "run.seed=1,2,3,4,5", "data.path=python-docs"]
    assert main(["slurm", "submit", *sweep, "--dry-run"]) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("sbatch")]
    arrays = [[argument for argument in line if argument.startswith(("--array", "--dependency"))] for line in told]
    assert arrays == [["--array=0-2"], ["--array=0-1"], ["--dependency=afterany:JOB:JOB"]]
    assert main(["slurm", "submit", *sweep, "--dry-run", "slurm.jobs=2"]) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("sbatch")]
    assert "--dependency=afterany:JOB" in told[1], "no more than two at a time in both"
