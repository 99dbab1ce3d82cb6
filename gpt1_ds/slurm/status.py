"""What SLURM says about a run's jobs and about the nodes: a minute on every node before hours on all of them (which
hosts are bad, and the option that avoids them); and what it says of a run, beside what the run says itself."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.errors import ConfigError, LaunchError
from gpt1_ds.common.files import append
from gpt1_ds.common.rundir import RunDir, no_run, read_jsonl
from gpt1_ds.common.text import amount, decimals
from gpt1_ds.diagnostics.report import OF_A_JOB, Report, read_report
from gpt1_ds.slurm.faults import read_note
from gpt1_ds.slurm.tries import newest_step

if TYPE_CHECKING:
    from gpt1_ds.config import Config


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """Returns what the ranks of the check (diagnostics/health.py) wrote, by rank."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("health-*.json")]
    return sorted(found, key=lambda report: int(report["rank"]))


def proof_arguments(config: Config) -> list[str]:
    """Returns arguments of the self-proof on a job's GPUs: what was asked of SLURM, and how runs compute."""
    train = config.train
    keys = {"precision": train.precision, "compile": train.compile, "deterministic": str(train.deterministic).lower()}
    return [f"--gpus-per-node={config.slurm.gpus}", *(f"train.{key}={value}" for key, value in keys.items())]


def read_proof(folder: Path, gpus_per_node: int, code: int) -> Report | None:
    """Returns what the self-proof left in a check's folder; None where there is no GPU, or the check ended before it
    with an exit code of its own. Raises LaunchError where there should be one.
    """
    path = folder / OF_A_JOB
    if path.exists():
        return read_report(path)
    if gpus_per_node and code == 0:
        raise LaunchError(f"slurm.gpus_per_node={gpus_per_node}, but the nodes had no GPU for the self-proof")
    return None


def bad_hosts(reports: Sequence[dict[str, Any]], hosts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (host, what is wrong with it). Ranks that do not reach the others count as bad only if some do."""
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
    """Returns (whether all is well, lines to show)"""
    if not reports:  # a step starts on all nodes or on none: nobody knows whose fault it is
        return False, [f"none of {', '.join(hosts)} answered: the step did not start; what srun said is above"]
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


NO_DETAILS = ("time", "event")
EVENTS = 5  # of the run's latest that are shown


def describe(run_dir: RunDir) -> Iterator[str]:
    """Yields the lines on the run, its jobs in order, and its latest events."""
    if not any(path.exists() for path in (run_dir.slurm, run_dir.config, run_dir.metrics, run_dir.events)):
        raise ConfigError(f"{run_dir.path}: {no_run(run_dir.path)}")
    step = "no step yet"
    for line in read_jsonl(run_dir.metrics):
        loss = line.get("loss") if isinstance(line.get("loss"), (int, float)) else None
        step = f"step {line['step']}, loss {decimals(loss)}" if line["kind"] == "train" else step
    target = read_note(run_dir.done).get("step", "-")
    done = f"done at step {target}" if run_dir.done.exists() else f"newest checkpoint of step {newest_step(run_dir)}"
    submitted = {str(line["job"]): line for line in read_jsonl(run_dir.slurm / "submitted.jsonl")}
    if not any(line.get("command") for line in submitted.values()):
        yield f"{run_dir.path}: {step}; {done}"
    for job in jobs(run_dir):
        line = submitted.get(job, {})
        command = f"{shlex.join(line['command'])}: " if line.get("command") else ""
        yield f"job {job}: {command}{_state(job)}{_outcome(run_dir, job)}"
        for other in line.get("after", ()):
            yield f"job {job} waits, or waited, for job {other}: {_state(other)}"
    events = list(read_jsonl(run_dir.events))[-EVENTS:]
    for event in events:
        details = " ".join(f"{key}={value}" for key, value in event.items() if key not in NO_DETAILS and value != "")
        yield f"{event['time']} {event['event']} {details}"


def jobs(run_dir: RunDir) -> list[str]:
    """Returns the numbers of the run's jobs, submitted or started, oldest first."""
    started = {path.name.split("-")[1] for path in run_dir.slurm.glob("try-*.json")}
    found = started | {str(line["job"]) for line in read_jsonl(run_dir.slurm / "submitted.jsonl")}
    return sorted(found, key=lambda job: [int(part) for part in job.split("_") if part.isdigit()])


def _state(job: str) -> str:
    """Returns what SLURM says of a job: squeue's while it knows the job, then the accounting's where there is one."""
    for command in (
        ["squeue", "--noheader", f"--jobs={job}", "--format=%T %M %R"],
        ["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State,ExitCode,Elapsed"],
        ["scontrol", "--oneliner", "show", "job", job],
    ):
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = " ".join(done.stdout.split())
        if done.returncode == 0 and text:
            if command[0] != "scontrol":
                return text.replace("|", " ")
            fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
            return f"{fields.get('JobState', 'unknown')} {fields.get('ExitCode', '')} {fields.get('RunTime', '')}"
    return "SLURM does not know it any more"


def _outcome(run_dir: RunDir, job: str) -> str:
    outcome = read_note(run_dir.outcome(job))
    if "reason" not in outcome:
        return ""
    return f"; the run says {outcome['reason']} ({outcome.get('code', '-')}) at step {outcome.get('step', '-')}"


def note_submission(run_dir: RunDir, job: str, after: Sequence[str] = (), command: Sequence[str] = ()) -> None:
    """Notes a job, those that it waits for, and its command where it is no job of a run."""
    line = {"job": job, "after": list(after), "command": list(command)}
    append(run_dir.slurm / "submitted.jsonl", json.dumps(line, ensure_ascii=False) + "\n")
