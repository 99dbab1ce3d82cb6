"""Copies of datasets on a node's own disk, so that reading does not wait for a file server."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from gpt1_ds.common.lock import one_at_a_time
from gpt1_ds.data.dataset import DESCRIPTION

VARIABLE = "GPT1_DS_STAGE"  # the folder on this node that holds the copies; set by launch/life.sh
_COMPLETE = ".complete"


def staged(source: str) -> Path:
    """This node's copy of the dataset at `source` where there is a whole one that we made, else `source` itself."""
    place = os.environ.get(VARIABLE)
    copy = _copy_of(source, Path(place)) if place else None
    if copy is None or not (copy / _COMPLETE).exists() or not _is_ours(copy):
        return Path(source)
    described = [(folder / DESCRIPTION).read_bytes() for folder in (copy, Path(source))]
    return copy if described[0] == described[1] else Path(source)


def stage(sources: Sequence[str], place: Path) -> None:
    """Copy datasets to `place`; what is there and of the same size is kept. Raises OSError, for a full disk say, or a
    folder that is another person's or that others may write to."""
    for source in sources:
        copy = _copy_of(source, place)
        place.mkdir(parents=True, exist_ok=True)
        copy.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(copy):
            raise PermissionError(f"{copy}: is not yours alone to write; remove it, or choose another slurm.stage_to")
        with one_at_a_time(copy):  # two jobs of one node may want the same
            _fill(copy, Path(source))


def _fill(copy: Path, source: Path) -> None:
    (copy / _COMPLETE).unlink(missing_ok=True)
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        target = copy / file.relative_to(source)
        if not target.exists() or target.stat().st_size != file.stat().st_size:
            target.parent.mkdir(parents=True, exist_ok=True)
            written = target.with_name(f".{target.name}.copied")
            try:
                shutil.copyfile(file, written)
                os.replace(written, target)
            except BaseException:
                written.unlink(missing_ok=True)  # the disk that is full is the whole node's
                raise
    (copy / _COMPLETE).touch()


def _is_ours(folder: Path) -> bool:
    facts = folder.lstat()
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022


def _copy_of(source: str, place: Path) -> Path:
    """Named by the dataset's description, so that another dataset at the same path is another copy."""
    described = (Path(source) / DESCRIPTION).read_bytes() if (Path(source) / DESCRIPTION).exists() else b""
    name = hashlib.sha256(str(Path(source).resolve()).encode() + described).hexdigest()[:16]
    return place / f"{Path(source).name}-{name}"
