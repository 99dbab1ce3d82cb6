"""One writer per run folder.

The lock is a small JSON file naming the holder (host, pid, job, heartbeat). A holder that lives on this host is known
by its process; one on another host by its heartbeat. A stale lock is taken over, a live one is waited for.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from gpt1_ds.common import log
from gpt1_ds.common.errors import EXIT_FAILURE, LaunchError

HEARTBEAT_SECONDS = 5.0
_SIZE = 512  # bytes of the file
STALE_SECONDS = 60.0  # a holder on another host that has not beaten for this long is gone


class RunLock:
    """Hold `path` for the life of a run; use as a context manager."""

    def __init__(self, path: Path, wait_seconds: float = 60.0) -> None:
        self.path = path
        self.wait_seconds = wait_seconds
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> RunLock:
        deadline = time.monotonic() + self.wait_seconds
        while not self._take():
            holder = self._read()
            if time.monotonic() > deadline and (holder == {} or (holder and is_live(holder))):
                raise LaunchError(
                    f"{self.path.parent}: another process writes this run folder: pid {holder.get('pid')} on "
                    f"{holder.get('host')}, job {holder.get('job') or '-'}; stop it or choose another run.name"
                )
            time.sleep(0.2)
        self._thread = threading.Thread(target=self._beat, name="run-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(timeout=HEARTBEAT_SECONDS)
        holder = self._read()
        if holder and holder.get("pid") == os.getpid() and holder.get("host") == socket.gethostname():
            self.path.unlink(missing_ok=True)

    def _take(self) -> bool:
        """Create the lock file, after removing a stale one. True when it is ours."""
        with open(self.path.with_name(f"{self.path.name}.guard"), "a") as guard:
            with contextlib.suppress(OSError):  # some Lustre mounts have no flock; creating alone is then the lock
                fcntl.flock(guard, fcntl.LOCK_EX)  # two takers of one stale lock must not remove each other's new one
            holder = self._read()
            if holder is not None and not is_live(holder):
                self.path.unlink(missing_ok=True)
            try:
                descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            except FileExistsError:
                return False
            with os.fdopen(descriptor, "w") as file:
                file.write(self._content())
        return True

    def _read(self) -> dict[str, Any] | None:
        """The holder, `{}` for a lock that is being written this instant, None when there is no lock."""
        try:
            text = self.path.read_text()
            age = time.time() - self.path.stat().st_mtime
        except OSError:
            return None
        try:
            return dict(json.loads(text))
        except ValueError:
            return {} if age < STALE_SECONDS else {"host": socket.gethostname(), "pid": 0}

    def _content(self) -> str:
        text = json.dumps(
            {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "started": _start_time(os.getpid()),
                "job": os.environ.get("SLURM_JOB_ID", ""),
                "heartbeat": time.time(),
            }
        )
        return text.ljust(_SIZE - 1) + "\n"

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):  # a file system in trouble must not end a run through its lock
                holder = self._read()
                if holder and (holder.get("host"), holder.get("pid")) != (socket.gethostname(), os.getpid()):
                    self._lost(holder)
                with open(self.path, "r+") as file:  # in place, so that a full disk does not make it look stale
                    file.write(self._content())

    def _lost(self, holder: dict[str, Any]) -> None:
        """This process was stopped for so long that another one took the folder over: two writers would destroy it."""
        log.alarm(
            f"{self.path.parent}: pid {holder.get('pid')} on {holder.get('host')} took this run folder over while this "
            "process was stopped; it ends here"
        )
        os._exit(EXIT_FAILURE)


def is_held(path: Path) -> bool:
    """Whether a live process holds the lock at `path`."""
    holder = RunLock(path)._read()
    return holder is not None and is_live(holder)


def is_live(holder: dict[str, Any]) -> bool:
    """Whether the process that a lock names still writes."""
    if not holder:
        return True  # being written this instant
    if holder.get("host") == socket.gethostname():
        started = _start_time(int(holder.get("pid", 0)))
        return started is not None and started == holder.get("started", started)
    return time.time() - float(holder.get("heartbeat", 0)) < STALE_SECONDS


def _start_time(pid: int) -> str | None:
    """Clock tick at which a process began (so that a reused pid is not taken for the holder); None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]
