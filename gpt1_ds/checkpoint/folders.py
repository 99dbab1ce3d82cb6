"""Which folders are checkpoints."""

from __future__ import annotations

import math
import re
from pathlib import Path

from gpt1_ds.checkpoint import manifest
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.rundir import RunDir

_STEP = re.compile(r"step-(\d{8,})")


def steps_in(folder: Path) -> list[Path]:
    """Published checkpoint folders, oldest first."""
    found = [path for path in folder.glob("step-*") if _STEP.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def log_spaced(folders: list[Path], points: int) -> list[Path]:
    """About `points` of `folders`, oldest first, evenly on a log scale of steps; the last one is always kept."""
    steps = [max(1, int(path.name.removeprefix("step-"))) for path in folders]
    wanted = [steps[0] * (steps[-1] / steps[0]) ** (k / max(1, points - 1)) for k in range(points - 1)] + [steps[-1]]
    nearest = {min(range(len(steps)), key=lambda at: abs(math.log(steps[at] / want))) for want in wanted}
    return [folders[at] for at in sorted(nearest)]


def find(path: Path, newest: bool = False) -> Path:
    """The checkpoint folder that CKPT names: the folder itself, or of a run folder the best where the run keeps one
    (fine-tuning does), else the newest. With `newest` always that. Raises CheckpointError.
    """
    if (path / manifest.NAME).is_file():
        return path
    run = RunDir(path)
    folders = steps_in(run.checkpoints)
    if not folders:
        raise CheckpointError(f"{path}: neither a run folder with checkpoints nor a checkpoint folder")
    best = run.best.read_text(errors="replace").strip() if run.best.is_file() and not newest else ""
    return next((folder for folder in folders if folder.name == best), folders[-1])
