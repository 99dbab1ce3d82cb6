"""Files are verified once for all hosts only where their disk is shown to be the same one."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest

from gpt1_ds.launcher import launch
from tests.helpers.apart import NEW_MOUNTS


def shares(folder: str, copies: list[str]) -> list[tuple[int, int]]:
    """What this rank reads: on one host; on hosts of their own that share a disk, that are not known to, and that have
    copies there.
    """
    from gpt1_ds.config import load
    from gpt1_ds.engine import shared_disk
    from gpt1_ds.engine.session import distributed_session

    shared = Path(folder)
    files = [shared / "a.bin", shared / "b.bin"]
    with distributed_session(load([])) as groups:
        found = [shared_disk.reading_part(groups, files, None)]
        assert ctypes.CDLL(None).unshare(NEW_MOUNTS) == 0, "root may"
        shared_disk.require(groups, shared)
        found += [shared_disk.reading_part(groups, files, shared), shared_disk.reading_part(groups, files, None)]
        mine = Path(copies[groups.rank])
        found += [shared_disk.reading_part(groups, [mine / "a.bin", mine / "b.bin"], shared)]
        found += [shared_disk.reading_part(groups, [*files, Path("/proc/self/status")], shared)]
        assert [path.name for path in shared.iterdir() if path.is_file()] == ["a.bin", "b.bin"], "no mark is left"
    return found


def test_hosts_read_for_one_another_on_a_shared_disk_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        assert "CI" not in os.environ, "CI runs as root, so that this is tested there"
        pytest.skip("disks of one's own need root")
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(b"tokens")
    copies = [str(tmp_path / f"copy-{rank}") for rank in range(2)]
    for copy in copies:
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy-*"))
    for rank, found in enumerate(launch.run("tests.parallel.test_shared_disk:shares", (str(tmp_path), copies), 2)):
        assert found == [(rank, 2), (rank, 2), (0, 1), (0, 1), (0, 1)]
