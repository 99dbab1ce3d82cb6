"""A minute on every node before hours on all of them: which hosts are bad, and the option that avoids them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """What the ranks of the check (launcher/health.py) wrote, by rank."""
    found = [json.loads(path.read_text()) for path in folder.glob("health-*.json")]
    return sorted(found, key=lambda report: int(report["rank"]))


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
    return True, [f"{len(reports)} ranks on {', '.join(hosts)} reach one another; all-reduce at {slowest} MiB/s"]
