"""What SLURM says about a run's jobs, beside what the run says itself."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.files import append
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.common.text import decimals
from gpt1_ds.slurm.tries import newest_step, read_note

EVENTS = 5  # of the run's latest that are shown


def describe(run_dir: RunDir) -> Iterator[str]:
    """Lines on the run, its jobs in order, and its latest events."""
    if not run_dir.path.is_dir():
        raise ConfigError(f"{run_dir.path}: no such run folder")
    step = "no step yet"
    for line in read_jsonl(run_dir.metrics):
        loss = line.get("loss") if isinstance(line.get("loss"), (int, float)) else None
        step = f"step {line['step']}, loss {decimals(loss)}" if line["kind"] == "train" else step
    target = read_note(run_dir.done).get("step", "-")
    done = f"done at step {target}" if run_dir.done.exists() else f"newest checkpoint of step {newest_step(run_dir)}"
    yield f"{run_dir.path}: {step}; {done}"
    for job in jobs(run_dir):
        yield f"job {job}: {_state(job)}{_outcome(run_dir, job)}"
    events = list(read_jsonl(run_dir.events))[-EVENTS:]
    for event in events:
        details = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("time", "event"))
        yield f"{event['time']} {event['event']} {details}"


def jobs(run_dir: RunDir) -> list[str]:
    """Numbers of the run's jobs, submitted or begun, oldest first."""
    begun = {path.name.split("-")[1] for path in run_dir.slurm.glob("try-*.json")}
    found = begun | {str(line["job"]) for line in read_jsonl(run_dir.slurm / "submitted.jsonl")}
    return sorted(found, key=lambda job: [int(part) for part in job.split("_") if part.isdigit()])


def _state(job: str) -> str:
    """In SLURM's words: squeue's while it knows the job, then the accounting's where there is one."""
    for words in (
        ["squeue", "--noheader", f"--jobs={job}", "--format=%T %M %R"],
        ["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State,ExitCode,Elapsed"],
        ["scontrol", "--oneliner", "show", "job", job],
    ):
        if shutil.which(words[0]) is None:
            continue
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        text = " ".join(done.stdout.split())
        if done.returncode == 0 and text:
            if words[0] != "scontrol":
                return text.replace("|", " ")
            fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
            return f"{fields.get('JobState', 'unknown')} {fields.get('ExitCode', '')} {fields.get('RunTime', '')}"
    return "SLURM does not know it any more"


def _outcome(run_dir: RunDir, job: str) -> str:
    outcome = read_note(run_dir.outcome(job))
    if "reason" not in outcome:
        return ""
    return f"; the run says {outcome['reason']} ({outcome.get('code', '-')}) at step {outcome.get('step', '-')}"


def note_submission(run_dir: RunDir, job: str) -> None:
    append(run_dir.slurm / "submitted.jsonl", json.dumps({"job": job}) + "\n")
