"""Files that appear whole or not at all.

A reader never meets half a file: text is written beside its place, flushed to disk and moved over by one rename;
a folder is filled under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from gpt1_ds.common import stop_signals
from gpt1_ds.common.errors import DataError, NodeError, UserError, WorldError, one_line

MOST_JSON = 64 << 20  # bytes of memory that the JSON of strangers may take
_PER_BYTE, _PER_VALUE = 6, 100  # at most about: text is held three times, and wide characters take four
_TAKEN = "is there already; remove it, or name another place"
_WRONG = {  # what was judged wrong: it stays so
    errno.EEXIST: _TAKEN,
    errno.ENOTEMPTY: _TAKEN,
    errno.EACCES: "permission denied; choose a place you may write to",
    errno.EPERM: "not permitted; choose a place you may write to",
    errno.ELOOP: "a link that leads back to itself; remove it",
    errno.EISDIR: "a folder, not a file; remove it, or name a file",
    errno.ENOTDIR: "a part of this path is a file, not a folder; name another place",
    errno.EMFILE: "this process has as many files open as it may; raise the limit (`ulimit -n`)",
    errno.EFBIG: "larger than a file may be here (`ulimit -f`, or the file system)",
    errno.ENAMETOOLONG: "the name is too long for this file system",
}
_PASSING = {  # faults of the world, the same for every node
    errno.ENOSPC: "no space left on the device; free some",
    errno.EDQUOT: "disk quota exceeded; free some space",
    errno.EROFS: "read-only file system; choose a place you may write to",
    errno.ETIMEDOUT: "no answer in time; try again when the disk or the network is well",
    errno.ECONNREFUSED: "nobody answers there; try again when the network is well",
    errno.ENOLCK: "the file server has no locks to give; try again later",
}
_TEMPORARY = re.compile(r"\.([^/]+)\.[0-9a-f]{8}\.tmp\b")  # a folder or file of published_folder and write_atomic
_NODE = "try again, or on another node"
_OF_NODE = {  # faults that another node may not have
    errno.EIO: f"input/output error: the disk or the way to it has a fault; {_NODE}",
    errno.EREMOTEIO: f"input/output error of the file server; {_NODE}",
    errno.ESTALE: f"stale file handle: the file server was started again; {_NODE}",
    errno.ENOTCONN: f"the file system is not connected; {_NODE}",
    errno.ESHUTDOWN: f"the file system was shut down; {_NODE}",
    errno.ENFILE: f"too many files are open on this node; {_NODE}",
    errno.ENETDOWN: f"the network is down; {_NODE}",
    errno.ENETUNREACH: f"the network cannot be reached; {_NODE}",
    errno.EHOSTUNREACH: f"the host cannot be reached; {_NODE}",
    errno.EADDRINUSE: f"the address is in use; {_NODE}",
    errno.EADDRNOTAVAIL: f"no such address on this node; {_NODE}",
}


def explain(error: OSError) -> UserError | None:
    """Returns the one-line form of an error of the operating system: UserError for what a person can fix, WorldError
    for what may pass, NodeError where it may be this node's alone; None for the others.
    """
    if error.errno is None and isinstance(error.__cause__, OSError):  # a library's own words for it
        return explain(error.__cause__)
    number, name = error.errno or 0, error.filename
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        name = error.filename2 or name  # of two, what was written
    shown = _TEMPORARY.sub(r"\1", os.fsdecode(name)) if isinstance(name, (str, bytes)) else ""
    subject = f"{shown}: " if shown else ""
    if number == errno.EACCES and shown and (closed := _closed(Path(shown))):
        return UserError(f"{subject}permission denied: {closed}; ask for access, or name another place")
    if number in _WRONG:
        return UserError(f"{subject or 'a file: '}{_WRONG[number]}")
    if number in _PASSING:
        return WorldError(subject + _PASSING[number])
    if number in _OF_NODE:
        return NodeError(this_node(), f"{subject}{_OF_NODE[number]} (on {this_node()})")
    if number == errno.ENOENT and _is_nowhere():
        return UserError("the current folder was deleted; change to one that is there (cd)")
    if number == errno.ENOENT and str(error.strerror).startswith("No usable temporary directory"):  # tempfile's words
        return WorldError(f"TMPDIR: {error.strerror}; free some space, or export TMPDIR=...")
    return None


def _closed(path: Path) -> str:
    """Returns which part of `path` this process may not read or enter, and whose it is; empty where there is none: then
    it has tried to write.
    """
    with contextlib.suppress(OSError):
        real = Path(os.path.realpath(path))
        for part in (*reversed(real.parents), real):
            right = os.R_OK if part == real else os.X_OK
            if os.path.lexists(part) and not os.access(part, right, effective_ids=True):
                return f"{part} is {owner_of(part)}'s and closed to you"
    return ""


def owner_of(path: Path) -> str:
    """Returns the name of the person whose file this is, for a line."""
    with contextlib.suppress(OSError, KeyError):
        return path.owner()
    return "somebody"


def _is_nowhere() -> bool:
    """Returns whether the current folder was deleted: another one in its place is not that of this process."""
    try:
        os.getcwd()  # noqa: PTH109 - what is asked is whether it fails
    except FileNotFoundError:
        return True
    return False


def this_node() -> str:
    """Returns SLURM's name of this machine in a job, else its own."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """An error of the operating system in this block names `path`: those of reading and writing name no file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def shipped(name: str) -> Path:
    """Returns a folder that lies in the package in the wheel, and beside it in a checkout."""
    package = Path(__file__).parents[1]
    return next((folder for folder in (package / name, package.parent / name) if folder.is_dir()), Path())


def user_cache() -> Path:
    """Returns the folder in which this program keeps what it can make again; it may not be there yet."""
    try:
        home = Path.home()
    except RuntimeError:  # a number without a name, and HOME is not set
        home = Path("/")  # as Docker says it
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache").absolute() / "gpt1-ds"


def sync_folder(folder: Path) -> None:
    """Makes a rename inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems refuse to sync a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yields a new file that takes the place of `path` in one step when the block succeeds, else is removed."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    remove = partial(temporary.unlink, missing_ok=True)
    with stop_signals.undone(remove):
        try:
            with naming(path), open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            remove()
            raise
    sync_folder(path.parent)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replaces `path` by `content` in one step; a reader sees the old file or the new one."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def append(path: Path, text: str) -> None:
    """Adds `text` to a file; when the disk is full the file is left as it was and OSError is raised."""
    # a buffer would write the rest of a torn line when it is closed
    with naming(path), open(path, "a+b", buffering=0) as file:
        before = file.tell()
        torn = before > 0 and os.pread(file.fileno(), 1, before - 1) != b"\n"  # by a kill: the next line is not its end
        left = memoryview(("\n" * torn + text).encode())
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):  # what went wrong first is what is said
                file.truncate(before)
            raise


def discard(path: Path) -> bool:
    """Removes a file, or an empty folder, that a person put there; whether it is gone now."""
    with contextlib.suppress(OSError):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    return not os.path.lexists(path)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def is_there(path: Path) -> bool:
    """Returns whether there is a file to read at `path`. Raises DataError for a folder, a pipe or a device in its
    place, which might never end.
    """
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: not a plain file; remove it")
    return path.exists()


def did_you_mean(path: Path, accepts: Callable[[Path], bool] = Path.exists) -> str:
    """Returns "did you mean PATH?" with a path beside `path` that has nearly its name; empty where there is none."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # a folder that is closed, or not there
        names = [other.name for other in path.parent.iterdir() if accepts(other)]
    close = difflib.get_close_matches(path.name, names, 1)
    return f"did you mean {path.parent / close[0]}?" if close else ""


def read_json(path: Path, missing: Any = None) -> Any:
    """Returns what `write_json` wrote, or `missing` where there is no file. Raises DataError for a damaged one."""
    if not is_there(path):
        return missing
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: damaged: no JSON ({one_line(error)}); remove it and make it again") from None


def parse_json(data: bytes, most: int = MOST_JSON) -> Any:
    """Returns the value of a JSON text of strangers, whose bytes can stand for twenty times as much memory
    (`[[],[],...`).

    Raises ValueError for what is none, or would take more than `most` bytes of memory.
    """
    values = sum(map(data.count, (b",", b"[", b"{", b":")))
    if _PER_BYTE * len(data) + _PER_VALUE * values > most:
        raise ValueError(f"its {len(data)} bytes hold too much")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@contextlib.contextmanager
def published_folder(final: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `final`; when the block succeeds it becomes `final`, else it is removed.

    Raises OSError (EEXIST, after the block ENOTEMPTY) when `final` is taken: a published folder is never overwritten.
    """
    if is_taken(final):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final))
    temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.tmp")
    remove = partial(shutil.rmtree, temporary, ignore_errors=True)
    with stop_signals.undone(remove):
        try:
            temporary.mkdir(parents=True)
            yield temporary
            sync_folder(temporary)
            os.rename(temporary, final)
        except BaseException as error:
            remove()
            if isinstance(error, OSError) and error.errno and error.filename is None:  # libraries in Rust name no file
                error.filename = str(final)
            raise
    sync_folder(final.parent)


@contextlib.contextmanager
def scratch_folder(place: str | None = None) -> Iterator[str]:
    """Yields a new folder in `place`, else where the system keeps temporary files; it is removed after the block, and
    where a signal ends the program in it.
    """
    with (
        tempfile.TemporaryDirectory(dir=place) as name,
        stop_signals.undone(partial(shutil.rmtree, name, ignore_errors=True)),
    ):
        yield name


def is_taken(out: Path) -> bool:
    """Returns whether something is at `out` that a new folder cannot take the place of. It can take an empty one's,
    unless that is where the program runs, a mount or a link.
    """
    if out.is_dir() and not out.is_symlink() and not any(out.iterdir()):
        return out.samefile(".") or os.path.ismount(out)
    return out.exists() or out.is_symlink()


def sha256_file(path: Path) -> str:
    """Returns the hex sha256 of a file's bytes, read in blocks."""
    with naming(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
