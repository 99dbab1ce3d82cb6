"""Files that appear whole or not at all.

A reader never meets half a file: text is written beside its place, flushed to disk and moved over by one rename;
a folder is filled under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import UserError

_WAYS_OUT = {
    errno.ENOSPC: "no space left on the device; free some",
    errno.EDQUOT: "disk quota exceeded; free some space",
    errno.EACCES: "permission denied; choose a place you may write to (run.dir=...)",
    errno.EPERM: "not permitted; choose a place you may write to (run.dir=...)",
    errno.EROFS: "read-only file system; choose a place you may write to (run.dir=...)",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.ENAMETOOLONG: "the name is too long for this file system",
}


def explain(error: OSError) -> UserError | None:
    """The one-line form of an operating-system error a person can mend, or None for the others."""
    if error.errno not in _WAYS_OUT:
        return None
    return UserError(f"{error.filename or 'a file'}: {_WAYS_OUT[error.errno]}")


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems refuse to sync a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace `path` by `content` in one step; a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    data = content.encode() if isinstance(content, str) else content
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def append(path: Path, text: str) -> None:
    """Add `text` to a file; when the disk is full the file is left as it was and OSError is raised."""
    with open(path, "ab", buffering=0) as file:  # a buffer would write the rest of a torn line when it is closed
        before = file.tell()
        left = memoryview(text.encode())
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(before)
            raise


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def published_folder(final: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `final`; when the block succeeds it becomes `final`, else it is removed.

    Raises FileExistsError when `final` is there already: a published folder is never overwritten.
    """
    if final.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final))
    temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.tmp")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        sync_folder(temporary)
        os.rename(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(final.parent)


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
