"""Where torch's compiler and Triton keep what they make for a GPU, so that it outlives a process, a job and /tmp.

Both write a file beside its place and rename it, so ranks and hosts may share the folder. Both trust what they find
there (torch unpickles it): the folder is this user's alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpt1_ds.common import log
from gpt1_ds.common.files import user_cache

VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}  # read when something is compiled


def use() -> None:
    """Name the user's cache in the environment; what is named there already stays. Where nobody can write into that
    cache or others can, the libraries keep their own choice.
    """
    folder = user_cache() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        problem = _problem(folder)
    except OSError as error:
        problem = error.strerror or str(error)
    if problem is not None:
        log.say(f"{folder}: {problem}; kernels are compiled again where the libraries' own caches are lost")
        return
    for variable, name in VARIABLES.items():
        os.environ.setdefault(variable, str(folder / name))


def _problem(folder: Path) -> str | None:
    """Why what lies in this folder may not be this user's."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "not a folder"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others can write into it (chmod 700 mends that)"
    return None if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written"
