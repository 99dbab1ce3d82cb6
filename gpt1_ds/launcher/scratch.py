"""A launcher's private folder, in which its ranks meet: short enough for the path of a socket, and gone with the
launcher. One that is killed leaves it behind for the next one to remove: a folder that nobody locks is nobody's.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing.util
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from gpt1_ds.common.errors import LaunchError, WorldError

PREFIX = "gpt1-ds-ranks-"
LONGEST = 107 - len(f"/{PREFIX}12345678/pymp-12345678/listener-12345678")  # letters; Linux allows a socket's path 107
ELSEWHERE = ("/tmp", "/var/tmp", "/dev/shm")


@cache
def folder() -> Path:
    """This process's folder. Raises LaunchError where TMPDIR is too long and there is no other place, WorldError where
    nothing can be written."""
    place = _place()
    _sweep(place)
    while True:
        made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        _lock(made, fcntl.LOCK_EX)  # for as long as this process lives
        if made.exists():  # else another launcher swept it away before it was locked
            break
    # after multiprocessing's own, which are inside
    multiprocessing.util.Finalize(None, shutil.rmtree, (made,), {"ignore_errors": True}, exitpriority=-200)
    before, tempfile.tempdir = tempfile.tempdir, str(made)
    try:
        multiprocessing.util.get_temp_dir()  # where the fork server listens
    finally:
        tempfile.tempdir = before
    return made


def _place() -> str:
    try:
        wanted = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise WorldError(f"TMPDIR: {error.strerror}; free some space, or export TMPDIR=...") from None
    for place in (wanted, *ELSEWHERE):
        if len(os.fsencode(place)) <= LONGEST and os.access(place, os.W_OK | os.X_OK):
            return place
    raise LaunchError(f"TMPDIR={wanted}: more than {LONGEST} letters, too long for a socket in it; export TMPDIR=/tmp")


def _sweep(place: str) -> None:
    """Remove the folders of launchers that were killed, in this container or another one of this host."""
    for left in Path(place).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if left.lstat().st_uid == os.geteuid() and not left.is_symlink():
                descriptor = _lock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if descriptor is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(descriptor)


def _lock(made: Path, how: int) -> int | None:
    """An open descriptor that holds the folder's lock; None where another process does, or where there are none."""
    descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, how)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
