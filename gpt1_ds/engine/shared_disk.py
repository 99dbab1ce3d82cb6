"""Which ranks read files for one another when they verify them: all ranks where the files are on a disk that all hosts
share, else those of one host.

Equal paths, inode numbers or devices do not show that a disk is shared: two hosts may have copies of one image. What
rank 0 writes and all others see does; it is written into the run folder, as the data may be read-only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.files import this_node
from gpt1_ds.engine.process_groups import ProcessGroups

PATIENCE = 5.0  # seconds that a file server may take to show a new file to all


def require(groups: ProcessGroups, folder: Path) -> None:
    """Raises ConfigError alike on all ranks where one does not see what rank 0 writes in `folder`."""
    if len(set(groups.gather(host()))) == 1:
        return
    mark = groups.on_rank_0(lambda: _make_mark(folder))
    seen = groups.gather((_appears(mark), this_node()))
    groups.on_rank_0(lambda: mark.unlink(missing_ok=True))
    for rank, (sees, node) in enumerate(seen):
        if not sees:
            raise ConfigError(
                f"run.dir: rank {rank} on {node} does not see what rank 0 on {seen[0][1]} writes in {folder}; choose a "
                "folder on a disk that all hosts share"
            )


def reading_part(groups: ProcessGroups, files: Sequence[Path], shared: Path | None) -> tuple[int, int]:
    """Returns (k, n): this rank is the k-th of n that verify `files` together. `shared` is a folder that `require`
    found to be on a shared disk; files on the same file system, of the same inodes on all hosts, are the same files.
    """
    hosts = groups.gather((host(), _paths(files)))  # ranks of one host may have copies of their own
    ours = [rank for rank, one in enumerate(hosts) if one == hosts[groups.rank]]
    if len(ours) < groups.world:
        found = groups.gather(_identity(files, shared) if shared is not None else None)
        if found[0] is None or len(set(found)) > 1:
            return ours.index(groups.rank), len(ours)
    return groups.rank, groups.world


def host() -> str:
    """Returns an identity of this machine, and of a container's view of disks among others on one machine."""
    found = [this_node()]
    with contextlib.suppress(OSError):  # not every container shows them
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        found += [boot, str(Path("/proc/self/ns/mnt").stat().st_ino)]
    return " ".join(found)


def _make_mark(folder: Path) -> Path:
    mark = folder.absolute() / f".shared-{uuid.uuid4().hex}"
    mark.touch()
    return mark


def _appears(mark: Path) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not mark.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _paths(files: Sequence[Path]) -> str:
    return hashlib.sha256("\0".join(map(os.path.abspath, files)).encode()).hexdigest()


def _identity(files: Sequence[Path], shared: Path) -> str | None:
    """Returns a hash of the inodes of `files`; None where one is on another file system than `shared`, or missing."""
    try:
        device, found = shared.stat().st_dev, [file.stat() for file in files]
    except OSError:
        return None
    if any(one.st_dev != device for one in found):
        return None
    return hashlib.sha256(repr([one.st_ino for one in found]).encode()).hexdigest()
