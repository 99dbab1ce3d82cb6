"""Copies of datasets on a node's own disk, so that reading does not wait for a file server."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "GPT1_DS_STAGE"  # the folder on this node that holds the copies; set by launch/life.sh
_COMPLETE = ".complete"


def staged(source: str) -> Path:
    """This node's copy of the dataset at `source` where there is a whole one, else `source` itself."""
    place = os.environ.get(VARIABLE)
    copy = _copy_of(source, Path(place)) if place else None
    return copy if copy is not None and (copy / _COMPLETE).exists() else Path(source)


def stage(sources: Sequence[str], place: Path) -> None:
    """Copy datasets to `place`; what is there and of the same size is kept. Raises OSError, for a full disk say."""
    for source in sources:
        copy = _copy_of(source, place)
        (copy / _COMPLETE).unlink(missing_ok=True)
        for file in sorted(path for path in Path(source).rglob("*") if path.is_file()):
            target = copy / file.relative_to(source)
            if not target.exists() or target.stat().st_size != file.stat().st_size:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
        (copy / _COMPLETE).touch()


def _copy_of(source: str, place: Path) -> Path:
    """Named by the dataset's description, so that another dataset at the same path is another copy."""
    described = (Path(source) / "dataset.json").read_bytes() if (Path(source) / "dataset.json").exists() else b""
    name = hashlib.sha256(str(Path(source).resolve()).encode() + described).hexdigest()[:16]
    return place / f"{Path(source).name}-{name}"
