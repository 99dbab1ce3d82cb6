"""A minute on every node before hours on all of them: which hosts are bad, and the option that avoids them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.errors import LaunchError
from gpt1_ds.common.text import amount
from gpt1_ds.diagnostics.report import OF_A_JOB, Report, read

if TYPE_CHECKING:
    from gpt1_ds.config import Config


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """What the ranks of the check (diagnostics/health.py) wrote, by rank."""
    found = [json.loads(path.read_text()) for path in folder.glob("health-*.json")]
    return sorted(found, key=lambda report: int(report["rank"]))


def words(config: Config) -> list[str]:
    """What the self-proof on a job's GPUs is told: what was asked of SLURM, and how runs compute."""
    train = config.train
    keys = {"precision": train.precision, "compile": train.compile, "deterministic": str(train.deterministic).lower()}
    return [f"--gpus-per-node={config.slurm.gpus_per_node}", *(f"train.{key}={value}" for key, value in keys.items())]


def read_proof(folder: Path, gpus_per_node: int, code: int) -> Report | None:
    """What the self-proof left in a check's folder; None where there is no GPU, or the check ended before it with an
    exit code of its own. Raises LaunchError where there should be one.
    """
    path = folder / OF_A_JOB
    if path.exists():
        return read(path)
    if gpus_per_node and code == 0:
        raise LaunchError(f"slurm.gpus_per_node={gpus_per_node}, but the nodes had no GPU for the self-proof")
    return None


def bad_hosts(reports: Sequence[dict[str, Any]], hosts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(host, what is wrong with it). Ranks that do not reach the others are told apart only if some do."""
    for host in hosts:
        if not any(report["host"] == host for report in reports):
            yield host, "did not answer"
    for report in reports:
        for problem in report["problems"]:
            yield str(report["host"]), problem
    lonely = [report for report in reports if not report.get("reached")]
    if len(lonely) < len(reports):
        for report in lonely:
            yield str(report["host"]), f"rank {report['rank']} did not reach the others"


def verdict(reports: Sequence[dict[str, Any]], hosts: Sequence[str]) -> tuple[bool, list[str]]:
    """(whether all is well, lines to show)"""
    bad = list(bad_hosts(reports, hosts))
    if bad:
        names = ",".join(dict.fromkeys(host for host, _ in bad))
        return False, [*(f"{host}: {problem}" for host, problem in bad), f"leave them out: slurm.exclude={names}"]
    if not all(report.get("reached") for report in reports):
        advice = "name the network in slurm.environment, NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME for example"
        return False, [f"all {len(hosts)} hosts answer, but their ranks do not reach one another; {advice}"]
    slowest = min(report["mib_per_second"] for report in reports)
    return True, [
        f"{amount(len(reports), 'rank')} on {', '.join(hosts)} reach one another; all-reduce at {slowest} MiB/s"
    ]
