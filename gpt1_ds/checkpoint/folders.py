"""Which folders are checkpoints."""

from __future__ import annotations

import re
from pathlib import Path

from gpt1_ds.checkpoint import manifest
from gpt1_ds.common.errors import CheckpointError

_STEP = re.compile(r"step-(\d{8,})")


def steps_in(folder: Path) -> list[Path]:
    """Published checkpoint folders, oldest first."""
    found = [path for path in folder.glob("step-*") if _STEP.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def find(path: Path) -> Path:
    """The checkpoint folder that CKPT names: a run folder's newest, or the folder itself. Raises CheckpointError."""
    if (path / manifest.NAME).is_file():
        return path
    folders = steps_in(path / "checkpoints")
    if not folders:
        raise CheckpointError(f"{path}: neither a run folder with checkpoints nor a checkpoint folder")
    return folders[-1]
