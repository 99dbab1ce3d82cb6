"""Faults of the world: from the process that met one to the job that comes next.

A process leaves word in `slurm/fault-<job>-<task>.json`. One that could not, because the run folder itself is in
trouble, is spoken for by whoever tries to write there.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import NodeError, TrainingError, UserError
from gpt1_ds.common.files import explain, write_atomic, write_json
from gpt1_ds.common.rundir import RUN_VARIABLE, RunDir


@dataclass(frozen=True)
class Fault:
    """What was in the way, and the nodes that may be the only ones to have it."""

    reason: str
    hosts: tuple[str, ...] = ()


def fault_of(error: UserError | TrainingError | OSError) -> Fault | None:
    """The fault that an error tells of, or None when it was judged wrong and stays so."""
    told = explain(error) if isinstance(error, OSError) else error
    if told is None or not told.passes:
        return None
    return Fault(str(told), (told.host,) if isinstance(told, NodeError) else ())


def leave_word(error: UserError | TrainingError) -> None:
    """Write down a fault that ends this process of a job; nothing outside a job, or for other errors."""
    folder, fault = os.environ.get(RUN_VARIABLE), fault_of(error)
    if not folder or fault is None:
        return
    write(RunDir(Path(folder)), os.environ.get("SLURM_PROCID", "0"), fault)


def write(run_dir: RunDir, task: str, fault: Fault) -> None:
    with contextlib.suppress(OSError):  # `find` will meet the same
        write_json(
            run_dir.fault(os.environ.get("SLURM_JOB_ID", ""), task), {"reason": fault.reason, "hosts": fault.hosts}
        )


def forget(run_dir: RunDir, job: str) -> None:
    """Remove what an earlier try of this job said."""
    for path in run_dir.slurm.glob(run_dir.fault(job, "*").name):
        path.unlink(missing_ok=True)


def find(run_dir: RunDir, job: str) -> Fault | None:
    """The fault that ended a job: what its processes said, or what this process meets in the run folder."""
    notes = [read_note(path) for path in sorted(run_dir.slurm.glob(run_dir.fault(job, "*").name))]
    said = [note for note in notes if "reason" in note]
    if said:
        hosts = dict.fromkeys(str(host) for note in said for host in note.get("hosts", ()))
        return Fault(str(said[0]["reason"]), tuple(hosts))
    attempt = run_dir.slurm / "attempt"
    try:
        write_atomic(attempt, bytes(4096))
        attempt.unlink()
    except OSError as error:
        return fault_of(error)
    return None


def read_note(path: Path) -> dict[str, Any]:
    """What a job's process wrote down; nothing where the file is missing or torn."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
