"""The run folder: one place that knows the name of every file in it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.common.files import append, did_you_mean, is_there

WAY_OUT = "name a run folder, like runs/NAME"
LARGEST_NUMBER = 1e305  # of a record; a run that diverged has a perplexity of up to e^700, which is 1e304
RUN_VARIABLE = "GPT1_DS_RUN"  # the run folder of the job that a process belongs to; set by launch/life.sh


class RunDir:
    """Paths and requests of `<run.dir>/<run.name>/`. Creating an instance touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "env.json"
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events.jsonl"
        self.checkpoints = path / "checkpoints"
        self.latest = self.checkpoints / "latest"
        self.best = self.checkpoints / "best"  # names the checkpoint that scored best, where a run keeps one
        self.logs = path / "logs"
        self.slurm = path / "slurm"
        self.wandb = path / "wandb"
        self.tensorboard = path / "tensorboard"
        self.evaluation = path / "eval.json"
        self.report = path / "report.html"
        self.profile = path / "profile"  # traces, their summary and its page
        self.study = path / "study.json"  # in the folder of a sweep or study, which is no run's
        self.done = path / "DONE"
        self.stop = path / "STOP"
        self.save = path / "SAVE"
        self.profile_request = path / "PROFILE"
        self.requests = (self.stop, self.save, self.profile_request)  # files by which a person asks
        self.lock = path / ".lock"
        self._pending: list[str] = []  # events that a full disk did not take

    def create(self, share: str = "private", job: bool = False) -> None:
        """Makes the folder. `private` is for its owner alone, `group` also lets the group read and write; a `job` of
        SLURM writes notes in its slurm/.
        """
        self.check_place()
        restrict(self.path, share)
        for folder in (self.checkpoints, self.logs, *([self.slurm] if job else [])):
            folder.mkdir(exist_ok=True)

    def create_for_jobs(self, share: str) -> None:
        """Makes the folder of jobs that are no run's, of an evaluation for example."""
        self.check_place()
        restrict(self.path, share)
        self.slurm.mkdir(exist_ok=True)

    def check_place(self) -> None:
        """Raises ConfigError or OSError where this run folder cannot be made, or everybody may write there."""
        for folder in (self.path, self.checkpoints, self.logs):
            if os.path.lexists(folder) and not folder.is_dir():
                raise ConfigError(f"{folder}: is no folder; remove it, or choose another run.name")
        for file in (self.config, self.environment, self.metrics, self.events, self.evaluation, self.done):
            if os.path.lexists(file) and not file.is_file():
                raise ConfigError(f"{file}: is no regular file; remove it, or choose another run.name")
        there = next(path for path in (self.path, *self.path.absolute().parents) if os.path.lexists(path))
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
        if os.statvfs(there).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(there))
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))
        if there == self.path and self.path.stat().st_mode & 0o002:
            raise ConfigError(f"{self.path}: everybody may write to this run folder; chmod o-w it or choose another")

    def job_stop(self, job: str) -> Path:
        """Returns the hand-over request of one SLURM job: save, end, let the successor continue."""
        return self.path / f"STOP.{job}"

    def outcome(self, job: str) -> Path:
        return self.slurm / f"outcome-{job}.json"

    def fault(self, job: str, task: str) -> Path:
        """Returns what one process of a job says of a fault of the world that ended it."""
        return self.slurm / f"fault-{job}-{task}.json"

    def ended(self, job: str) -> Path:
        """Returns what the launchers of a job's ranks said of those that ended badly."""
        return self.slurm / f"ended-{job}.txt"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def add_event(self, kind: str, **details: Any) -> None:
        """Appends one line to events.jsonl; rank 0 calls this. What a full disk refuses is kept for the next time."""
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": kind, **details}
        self._pending.append(json.dumps(line, ensure_ascii=False) + "\n")
        with contextlib.suppress(OSError):
            append(self.events, "".join(self._pending))
            self._pending.clear()


def restrict(folder: Path, share: str) -> None:
    """Makes a folder for its owner alone (`private`), or for the group too (`group`), as is all that this process
    writes from now on. What lies above a private one is as open as the person makes folders: runs of a group may come
    there.
    """
    if share == "private":
        folder.parent.mkdir(parents=True, exist_ok=True)
    os.umask(0o077 if share == "private" else 0o007)
    folder.mkdir(parents=True, exist_ok=True)


def share_as(folder: Path) -> None:
    """What this process writes from now on is for the group too where `folder` is: another person's page or samples in
    a run of `run.share=group` could be replaced by nobody else.
    """
    with contextlib.suppress(OSError):
        if folder.stat().st_mode & stat.S_IWGRP:
            os.umask(os.umask(0o077) & ~0o070)


def check_types(path: Path, where: str, record: Any, kinds: Mapping[str, str], optional: Sequence[str] = ()) -> None:
    """Raises DataError for a record of `path` that lacks a key of `kinds`, which is not among the `optional` ones, or
    has a value of another kind: "count", "number" (null is one that is not finite), "finite number", "text", "truth",
    "numbers" by name.
    """
    if not isinstance(record, dict):
        raise DataError(f"{path}: {where} is {record!r:.40}, no record; remove it")
    for key, kind in kinds.items():
        if key not in record and key in optional:
            continue
        if key not in record:
            raise DataError(f"{path}: {where} has no {key}; remove this record")
        if not _is_of(kind, record[key]):
            raise DataError(f"{path}: {where}: {key} is {record[key]!r:.40}, no {kind}; remove this record")


def _is_of(kind: str, value: Any) -> bool:
    if kind == "numbers":
        return isinstance(value, dict) and all(_is_of("number", one) for one in value.values())
    if kind == "number" and value is None:
        return True
    if kind in ("count", "number", "finite number"):
        exact = type(value) is int and 0 <= value < 2**63
        return exact or (kind != "count" and type(value) in (int, float) and abs(value) < LARGEST_NUMBER)
    return type(value) is {"text": str, "truth": bool}[kind]


def no_run(path: Path, what: str = "no run folder (config.yaml is missing)") -> str:
    """Returns why `path` cannot be used, and the way out: `what` it is, or that it is not there."""
    if path.exists():
        below = sorted(path.iterdir()) if path.is_dir() else []
        runs = [run for run in map(RunDir, below) if run.config.is_file() or run.checkpoints.is_dir()]
        return f"{what}; " + (f"it holds runs: {runs[-1].path}, for example" if runs else WAY_OUT)
    return f"no such folder; {did_you_mean(path) or WAY_OUT}"


def why_diverged(events: Sequence[Mapping[str, Any]]) -> str:
    """Returns why the last start of a run ended in divergence, from the lines of its events.jsonl; nothing where it did
    not.
    """
    start = max((number for number, event in enumerate(events) if event["event"] == "started"), default=0)
    for event in reversed(events[start:]):
        if event["event"] == "diverged" or (event["event"] == "spike" and event.get("action") == "raise"):
            return f"step {event['step']}: {event['problem']}"
    return ""


_COUNTED_ON: dict[str, dict[str, type]] = {
    "metrics.jsonl": {"kind": str, "step": int},
    "events.jsonl": {"time": str, "event": str},
}


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a JSONL file. What a kill, a power cut or a full disk cut off, or another program wrote, is
    skipped.
    """
    if not is_there(path):
        return
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                kinds = _COUNTED_ON.get(path.name, {})  # what everyone who reads a file of this name counts on
                if isinstance(value, dict) and all(type(value.get(key)) is kind for key, kind in kinds.items()):
                    yield value
