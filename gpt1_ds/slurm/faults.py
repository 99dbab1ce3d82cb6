"""Faults that are not the run's own: a full disk, a node that fails, an NCCL error. Another job may not meet them.

A process writes the fault that ends it to `slurm/fault-<job>-<task>.json`. Where it cannot, because the run folder
itself is in trouble, `find` meets the same fault when it tries to write there.
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
    """What was in the way."""

    reason: str
    hosts: tuple[str, ...] = ()  # nodes that may be the only ones to have it


def fault_of(error: UserError | TrainingError | OSError) -> Fault | None:
    """Returns the fault that an error shows; None for an error that another job would meet again."""
    explained = explain(error) if isinstance(error, OSError) else error
    if explained is None or not explained.passes:
        return None
    return Fault(str(explained), (explained.host,) if isinstance(explained, NodeError) else ())


def record_fault(error: UserError | TrainingError) -> None:
    """Records a fault that ends this process of a job; does nothing outside of a job, or for other errors."""
    folder, fault = os.environ.get(RUN_VARIABLE), fault_of(error)
    if not folder or fault is None:
        return
    write_fault(RunDir(Path(folder)), os.environ.get("SLURM_PROCID", "0"), fault)


def write_fault(run_dir: RunDir, task: str, fault: Fault) -> None:
    path = run_dir.fault(os.environ.get("SLURM_JOB_ID", ""), task)
    with contextlib.suppress(OSError):  # `find` will meet the same
        write_json(path, {"reason": fault.reason, "hosts": fault.hosts})


def forget(run_dir: RunDir, job: str) -> None:
    """Removes what an earlier try of this job recorded."""
    run_dir.ended(job).unlink(missing_ok=True)
    for path in run_dir.slurm.glob(run_dir.fault(job, "*").name):
        path.unlink(missing_ok=True)


def find(run_dir: RunDir, job: str) -> Fault | None:
    """Returns the fault that ended a job: what its processes recorded, or what this process meets in the run folder."""
    notes = [read_note(path) for path in sorted(run_dir.slurm.glob(run_dir.fault(job, "*").name))]
    faults = [note for note in notes if "reason" in note]
    if faults:
        hosts = dict.fromkeys(str(host) for fault in faults for host in fault.get("hosts", ()))
        return Fault(str(faults[0]["reason"]), tuple(hosts))
    attempt = run_dir.slurm / "attempt"
    try:
        write_atomic(attempt, bytes(4096))
        attempt.unlink()
    except OSError as error:
        return fault_of(error)
    return None


def read_note(path: Path) -> dict[str, Any]:
    """Returns what a job's process recorded; nothing where the file is missing or torn."""
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}
