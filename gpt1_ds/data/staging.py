"""Copies of datasets on a node's own disk, so that reading does not wait for a file server. Each copy knows the runs
that read it, and is removed with the last of them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from gpt1_ds.common.lock import one_at_a_time
from gpt1_ds.data.dataset import DESCRIPTION

VARIABLE = "GPT1_DS_STAGE"  # the folder on this node that holds the copies; set by launch/stage.sh
_COMPLETE = ".complete"
_READERS = ".readers"  # a folder of a copy with an empty file for each run that reads it


def staged(source: str) -> Path:
    """Returns this node's copy of the dataset at `source` where there is a whole one that we made, else `source`
    itself.
    """
    place = os.environ.get(VARIABLE)
    copy = _copy_of(source, Path(place)) if place else None
    if copy is None or not (copy / _COMPLETE).exists() or not _is_ours(copy):
        return Path(source)
    described = [(folder / DESCRIPTION).read_bytes() for folder in (copy, Path(source))]
    return copy if described[0] == described[1] else Path(source)


def stage(sources: Sequence[str], place: Path, run: str = "") -> None:
    """Copies datasets to `place`; what is there and of the same size is kept. `run` is the run folder of who reads
    them; without it nobody removes the copies. Raises OSError, for a full disk say, or a folder that is another
    person's or that others may write to.
    """
    for source in sources:
        copy = _copy_of(source, place)
        place.mkdir(parents=True, exist_ok=True)
        while not _is_staged(copy, Path(source), run):
            pass  # the last run that read it has removed it meanwhile


def _is_staged(copy: Path, source: Path, run: str) -> bool:
    copy.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(copy):
        raise PermissionError(f"{copy}: is not yours alone to write; remove it, or choose another slurm.stage_to")
    with one_at_a_time(copy) as is_there:  # two jobs of one node may want the same
        if is_there:
            if run:
                (copy / _READERS).mkdir(exist_ok=True)
                _reader(copy, run).touch()
            _fill(copy, source)
    return is_there


def release(sources: Sequence[str], place: Path, run: str, keep: bool = False) -> None:
    """Notes that `run` reads the copies in `place` no more, and removes those that no other run reads, unless `keep`.
    Raises OSError.
    """
    for copy in (_copy_of(source, place) for source in sources):
        if copy.is_dir() and _is_ours(copy):
            with one_at_a_time(copy) as is_there:
                if is_there and (copy / _READERS).is_dir():
                    _reader(copy, run).unlink(missing_ok=True)
                    if not keep and not any((copy / _READERS).iterdir()):
                        shutil.rmtree(copy)


def _reader(copy: Path, run: str) -> Path:
    return copy / _READERS / hashlib.sha256(run.encode()).hexdigest()[:16]


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
    """Returns the folder of a copy, which is named by the dataset's description, so that another dataset at the same
    path is another copy.
    """
    described = (Path(source) / DESCRIPTION).read_bytes() if (Path(source) / DESCRIPTION).exists() else b""
    name = hashlib.sha256(str(Path(source).resolve()).encode() + described).hexdigest()[:16]
    return place / f"{Path(source).name}-{name}"
