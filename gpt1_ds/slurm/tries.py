"""From one job of a run to the next: what was tried, how it ended, and whether it is worth another job.

`slurm/try-<job>-<restart>.json` is written before a job's ranks start, `slurm/outcome-<job>.json` by rank 0 when they
stop in an orderly way. What ended without an outcome was killed or crashed.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import EXIT_CONTINUE, EXIT_FAILURE, EXIT_USAGE
from gpt1_ds.common.files import write_json
from gpt1_ds.common.rundir import RunDir


@dataclass(frozen=True)
class Verdict:
    """How a job ended: its exit code, whether another job should go on, and why."""

    code: int
    go_on: bool
    reason: str


def begin(run_dir: RunDir, job: str, restart: str) -> None:
    """Note that a job begins, and at which step. What there is under its number is of an earlier try."""
    run_dir.outcome(job).unlink(missing_ok=True)
    run_dir.job_stop(job).unlink(missing_ok=True)
    note = {"job": job, "restart": int(restart or 0), "step": newest_step(run_dir), "host": os.uname().nodename}
    write_json(run_dir.slurm / f"try-{job}-{restart or 0}.json", {**note, "time": round(time.time())})


def end(run_dir: RunDir, job: str, restart: str, status: int, max_tries: int) -> Verdict:
    """Judge the try that `begin` noted, whose ranks ended with `status`."""
    began = _read(run_dir.slurm / f"try-{job}-{restart or 0}.json").get("step", 0)
    outcome = _read(run_dir.outcome(job))
    step = newest_step(run_dir)
    code = outcome.get("code", status or EXIT_FAILURE)
    if code == 0:
        return Verdict(0, False, str(outcome["reason"]))
    if code == EXIT_USAGE:
        return Verdict(code, False, "configuration or data is wrong; another try would say the same")
    reason = str(outcome.get("reason", f"the ranks ended with {status} and left no word; see logs/"))
    if outcome and code == EXIT_FAILURE:  # training itself gave up, and the next try would repeat it bit for bit
        return Verdict(code, False, f"{reason}; another try would come to the same")
    if code not in (EXIT_CONTINUE, EXIT_FAILURE, EXIT_USAGE):
        code = EXIT_FAILURE
    if step <= began:
        return Verdict(code, False, f"{reason}; no step was saved since it began at {began}, so it is not tried again")
    made = len(list(run_dir.slurm.glob("try-*.json")))
    if made >= max_tries:
        return Verdict(code, False, f"{reason}; {made} jobs were tried, as many as slurm.max_tries allows")
    return Verdict(code, True, f"{reason} after step {step}")


def newest_step(run_dir: RunDir) -> int:
    """Of the newest published checkpoint; 0 without one."""
    names = [path.name for path in run_dir.checkpoints.glob("step-*") if path.name[5:].isdigit()]
    return max((int(name[5:]) for name in names), default=0)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
