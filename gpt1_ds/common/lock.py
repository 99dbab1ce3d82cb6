"""One writer per run folder.

The lock is a small JSON file that carries a random token and names its holder. A holder in this very system (host, boot
and pid namespace) is known by its process; any other one by its heartbeat: if that does not change while it is watched,
the holder is gone, whatever its clock says. A stale lock is taken over, a live one is waited for. A holder reads its
token again with every heartbeat, and ends when it is another's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from gpt1_ds.common import log
from gpt1_ds.common.errors import EXIT_FAILURE, LaunchError, LockedError, UserError
from gpt1_ds.common.files import explain, naming, owner_of

HEARTBEAT_SECONDS = 5.0
GUARD_SECONDS = 5.0  # that looking at a lock may keep others from looking
QUIET_SECONDS = 5.0  # of waiting before a line says so
STALE_SECONDS = 60.0  # a holder elsewhere whose heartbeat stands still for this long is gone
LONG_AGO = 3600.0  # no two clocks are this far apart: a heartbeat that old needs no watching
_SIZE = 512  # bytes of the file
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
Holder = dict[str, Any]


class RunLock:
    """Hold `path` for the life of a run; use as a context manager."""

    def __init__(self, path: Path, wait_seconds: float = STALE_SECONDS) -> None:
        self.path, self.wait_seconds = path, wait_seconds
        self.token = secrets.token_hex(8)
        self._unreadable: UserError | None = None  # why nothing is known of the lock
        self._seen: tuple[Any, float] = (None, 0.0)  # a holder's last heartbeat, and since when it is that one
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> RunLock:
        """Waits at most `wait_seconds`, which a line says after QUIET_SECONDS. Raises LockedError naming a holder that
        lives, LaunchError or WorldError for a lock that cannot be read.
        """
        began, said = time.monotonic(), False
        while not self._is_taken():
            waited, problem = time.monotonic() - began, self._unreadable or self._locked()
            if problem is not None and waited > self.wait_seconds:
                raise problem
            if problem is not None and not said and waited > QUIET_SECONDS:
                log.say(f"waiting for at most {self.wait_seconds:g} s: {problem}")
                said = True
            time.sleep(0.2)
        self._thread = threading.Thread(target=self._beat, name="run-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(timeout=HEARTBEAT_SECONDS)
        with contextlib.suppress(OSError, LaunchError), self._guarded():  # the folder may be gone
            holder = self._read()
            if holder and holder.get("token") == self.token:
                self.path.unlink(missing_ok=True)

    def _is_taken(self) -> bool:
        """Returns whether the lock is ours now. What cannot be read may be readable later: a file server recovers."""
        self._unreadable = None
        try:
            return self._take()
        except _UnreadableError as error:
            self._unreadable = error.problem
            return False

    def _locked(self) -> UserError | None:
        """Who holds the lock; None where it is free, or not known yet whether the holder lives."""
        try:
            holder = self._read()
        except _UnreadableError as error:
            return error.problem
        if holder is None or self._is_watched(holder):
            return None
        return LockedError(
            f"{self.path.parent}: another process writes this run folder: pid {holder.get('pid')} on "
            f"{holder.get('host')}, job {holder.get('job') or '-'}; stop it or choose another run.name"
        )

    def _take(self) -> bool:
        """Puts our lock there, after removing a stale one. True when it is ours."""
        with self._guarded():  # two takers of one stale lock must not remove each other's new one
            holder = self._read()
            if holder is not None:
                if not self._is_stale(holder):
                    return False
                self.path.unlink(missing_ok=True)
            return self._create()

    def _create(self) -> bool:
        """Creates the lock with its content from the first instant on, so that no empty lock is there after a full
        disk. Returns whether it could.
        """
        written = self.path.with_name(f"{self.path.name}.{self.token}")
        try:
            descriptor = os.open(written, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o660)
            with naming(self.path), os.fdopen(descriptor, "wb") as file:
                file.write(self._content())
            try:
                os.link(written, self.path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return self._claim(written)
            return True
        finally:
            written.unlink(missing_ok=True)

    def _claim(self, written: Path) -> bool:
        """Creates the lock where there are no hard links: renaming alone would replace a lock that another process has
        just created. Returns whether it could.
        """
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o660))
        except FileExistsError:
            return False
        os.replace(written, self.path)
        return True

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        path = self.path.with_name(f"{self.path.name}.guard")
        if os.path.lexists(path):
            _check_regular(path)
        with open(path, "ab") as guard:
            deadline = time.monotonic() + GUARD_SECONDS
            while not _is_flocked(guard.fileno()):
                if time.monotonic() > deadline:
                    raise _UnreadableError(LockedError(f"{path}: another process has it open and locked; end that one"))
                time.sleep(0.01)
            yield

    def _read(self) -> Holder | None:
        """Returns the holder, `{}` for a lock without content, None when there is no lock. Raises LaunchError for
        another person's that may not be read.
        """
        try:
            _check_regular(self.path)
            with naming(self.path):
                text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except PermissionError:
            raise LaunchError(
                f"{self.path}: is {owner_of(self.path)}'s, who did not share it (run.share=group); ask for it, or "
                "choose another run.name"
            ) from None
        except OSError as error:
            problem = explain(error) or LaunchError(f"{self.path}: {error.strerror}; choose another run.name")
            raise _UnreadableError(problem) from None
        try:
            found = json.loads(text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _is_stale(self, holder: Holder) -> bool:
        if not holder:
            return True  # of a version that could leave it empty; ours never is
        if is_here(holder):
            return not _is_running(holder)
        beat = (holder.get("token"), holder.get("heartbeat"))
        if beat != self._seen[0]:
            self._seen = beat, time.monotonic()
        return _age(holder) > LONG_AGO or time.monotonic() - self._seen[1] > STALE_SECONDS

    def _is_watched(self, holder: Holder) -> bool:
        """Returns whether it is not known yet if a holder elsewhere lives: its heartbeat has not changed so far."""
        beat, since = self._seen
        return not is_here(holder) and beat is not None and time.monotonic() - since > 3 * HEARTBEAT_SECONDS

    def _content(self) -> bytes:
        holder = {
            "token": self.token,
            **identity(),
            "job": os.environ.get("SLURM_JOB_ID", ""),
            "heartbeat": time.time(),
        }
        return json.dumps(holder).ljust(_SIZE - 1).encode() + b"\n"

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError, LaunchError):  # a file system with a fault must not end a run by its lock
                holder = self._read()
                if holder and holder.get("token") != self.token:
                    # this process was stopped for so long that another one took over: two writers would destroy it
                    log.alarm(
                        f"{self.path.parent}: pid {holder.get('pid')} on {holder.get('host')} took this run folder "
                        "over while this process was stopped; it ends here"
                    )
                    os._exit(EXIT_FAILURE)
                with open(self.path, "r+b") as file:  # in place, so that a full disk does not make it look stale
                    file.write(self._content())


class _UnreadableError(LaunchError):
    """A lock of which nothing is known now; `problem` says why."""

    def __init__(self, problem: UserError) -> None:
        super().__init__(*problem.problems)
        self.problem = problem


def _check_regular(path: Path) -> None:
    """Raises _UnreadableError for a link, a folder or a pipe, which another program put there: opening a pipe waits."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise _UnreadableError(
            LaunchError(
                f"{path}: is no regular file; remove it where no process writes this run folder, or choose another "
                "run.name"
            )
        )


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[bool]:
    """A block that only one process of this machine is in, of those that name this folder. Nothing is left there.
    Yields whether the folder is still there: another process may have removed it while this one waited.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some mounts of Lustre have no flock, and NFS none of folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder.exists() and os.path.samestat(os.fstat(descriptor), folder.stat())
    finally:
        os.close(descriptor)


def _is_flocked(descriptor: int) -> bool:
    """Returns whether this process has the flock now, or there is none: then linking alone is the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def is_held(path: Path) -> bool:
    """Returns whether a process that seems to live holds the lock at `path`; of one elsewhere its clock is believed."""
    try:
        holder = RunLock(path)._read()
    except LaunchError:
        return True
    if not holder:
        return False
    return _is_running(holder) if is_here(holder) else _age(holder) < STALE_SECONDS


def identity() -> Holder:
    """Returns what only this process has, of all that are and were."""
    return {**_here(), "pid": os.getpid(), "started": _start_time(os.getpid())}


def is_alive_here(one: Holder) -> bool:
    """Returns whether the process of that `identity` runs in this system, so that it may be sent a signal."""
    pid = one.get("pid")
    return isinstance(pid, int) and pid > 1 and is_here(one) and _start_time(pid) == one.get("started", "")


def is_here(holder: Holder) -> bool:
    """Returns whether a lock's holder and this process see each other's process numbers. Two containers with one host
    name do not, nor do two boots of one host.
    """
    return all(holder.get(key) == value for key, value in _here().items())


@cache
def _here() -> dict[str, str]:
    boot, space = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        space = str(Path("/proc/self/ns/pid").readlink())
    return {"host": socket.gethostname(), "boot": boot, "pid_namespace": space}


def _is_running(holder: Holder) -> bool:
    started = _start_time(int(holder.get("pid", 0)))
    return started is not None and started == holder.get("started", started)


def _age(holder: Holder) -> float:
    """Returns the seconds since the last heartbeat, if the holder's clock is right."""
    return time.time() - float(holder.get("heartbeat", 0))


def _start_time(pid: int) -> str | None:
    """Returns the clock tick at which a process began (so that a reused pid is not taken for the holder); None when it
    is gone.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]
