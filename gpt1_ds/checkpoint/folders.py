"""Which folders are checkpoints; which of a run's stay, are set aside, or are deleted (rank 0 alone does that).

A checkpoint is published after it was read back, so what is older than the newest `keep` was never the only good one.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.manifest import REPLACED, step_of
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, ConfigError, DataError, UserError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.rundir import RunDir, no_run
from gpt1_ds.config.sections import CheckpointConfig


def steps_in(folder: Path) -> list[Path]:
    """Returns published checkpoint folders, oldest first. A kill between the two renames of a save leaves the
    checkpoint that was being replaced under its hidden name; it is one of them until `remove_unfinished` gives it its
    place again.
    """
    found = {step_of(path): path for path in sorted(folder.glob("*step-*")) if path.is_dir()}  # hidden ones give way
    return [found[step] for step in sorted(step for step in found if step is not None)]


def published_name(checkpoint: Path) -> str:
    """Returns the name of a checkpoint folder in its place, which one that a save was replacing has lost."""
    return checkpoint.name.removeprefix(".").removesuffix(REPLACED)


def log_spaced(folders: list[Path], points: int) -> list[Path]:
    """Returns about `points` of `folders`, oldest first, evenly on a log scale of steps; the last one is always
    kept.
    """
    steps = [max(1, step_of(path) or 0) for path in folders]
    wanted = [steps[0] * (steps[-1] / steps[0]) ** (k / max(1, points - 1)) for k in range(points - 1)] + [steps[-1]]
    nearest = {min(range(len(steps)), key=lambda at: abs(math.log(steps[at] / want))) for want in wanted}
    return [folders[at] for at in sorted(nearest)]


def _what_is_wrong(path: Path) -> str:
    """Says why no checkpoint is at `path`, and the way out."""
    run = RunDir(path)
    if run.done.exists() and not run.checkpoints.exists():
        return (
            "this run is done, and its checkpoints were removed, as a study does it with its cells; keep them by "
            "keep_checkpoints: true in the study's file, and remove this folder: its cell is trained again"
        )
    return no_run(path, "neither a run folder with checkpoints nor a checkpoint")


def find_checkpoint(path: Path, newest: bool = False) -> Path:
    """Returns the checkpoint folder that CKPT names: the folder itself, or of a run folder the best where the run keeps
    one (fine-tuning does), else the newest. With `newest` always that. Raises CheckpointError.
    """
    if (path / manifest.NAME).is_file():
        return path
    run = RunDir(path)
    folders = steps_in(run.checkpoints)
    if not folders and step_of(path) is not None and path.is_dir():
        return path  # whoever reads it says what it lacks
    if not folders:
        raise CheckpointError(f"{path}: {_what_is_wrong(path)}")
    best = run.best.read_text(errors="replace", encoding="utf-8").strip() if run.best.is_file() and not newest else ""
    return next((folder for folder in folders if published_name(folder) == best), folders[-1])


@contextlib.contextmanager
def while_it_is_there(folder: Path) -> Iterator[None]:
    """A block that reads `folder`, which the run that saved it may delete at any moment (`prune`). Raises
    CheckpointError in the place of any fault that follows from that.
    """
    try:
        yield
    except (FileNotFoundError, CheckpointError, ConfigError, DataError) as error:
        if folder.exists():
            raise
        gone = CheckpointError(
            f"{folder}: was deleted while it was read: its run keeps only the newest (checkpoint.keep); try again, or "
            "let the run keep more"
        )
        gone.on_all_ranks = isinstance(error, UserError) and error.on_all_ranks
        raise gone from None


def is_multiple(folder: Path, settings: CheckpointConfig) -> bool:
    """Returns whether `keep_every` keeps a checkpoint."""
    return settings.keep_every > 0 and (step_of(folder) or 0) % settings.keep_every == 0


def prune(run_dir: RunDir, settings: CheckpointConfig, spared: Collection[Path]) -> None:
    """Deletes what is older than the newest `keep`, except multiples of `keep_every`, what `latest` and `best` name,
    and for now what is `spared`. What the disk keeps is said.
    """
    try:
        pointers = [path for path in (run_dir.latest, run_dir.best) if path.exists()]
        named = {path.read_text(errors="replace", encoding="utf-8").strip() for path in pointers}
        for folder in steps_in(run_dir.checkpoints)[: -settings.keep]:
            if folder.name not in named and not is_multiple(folder, settings) and folder not in spared:
                doomed = folder.with_name(f".{published_name(folder)}.old")
                os.rename(folder, doomed)  # first: never half a checkpoint in place
                shutil.rmtree(doomed, ignore_errors=True)
    except OSError as error:
        log.say(f"{error.filename}: {error.strerror}: an old checkpoint could not be deleted")


def set_aside(run_dir: RunDir, folder: Path, problem: str) -> None:
    """Gives a damaged checkpoint a name that is no checkpoint's, out loud."""
    step = published_name(folder)
    name = f"{step}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    os.rename(folder, folder.with_name(name))
    log.say(f"{problem}; set aside as {name}")
    run_dir.add_event("set aside", checkpoint=step, to=name, problem=problem)


def settle(run_dir: RunDir, newest: Path, bad: list[tuple[Path, str]]) -> None:
    """`newest` was loaded: set the newer ones aside, each with its problem, and let `latest` name it."""
    for folder, problem in bad:
        set_aside(run_dir, folder, problem)
    latest = run_dir.latest
    named = latest.read_text(errors="replace", encoding="utf-8").strip() if latest.is_file() else "nothing"
    if named != newest.name:
        log.say(f"{latest} names {named[:80]}; the newest good checkpoint is {newest.name}")
        run_dir.add_event("stale latest", named=named[:80], newest=newest.name)
        write_atomic(latest, newest.name + "\n")


def refuse_to_start_over(run_dir: RunDir) -> None:
    """No checkpoint is there: raise CheckpointError if there were some, training from scratch would bury them."""
    left = sorted(path.name for path in run_dir.checkpoints.glob("step-*.damaged-*"))
    if run_dir.latest.exists():
        left.append(run_dir.latest.read_text(errors="replace", encoding="utf-8").strip()[:80])
    if left:
        raise CheckpointError(
            f"{run_dir.checkpoints}: no good checkpoint is left, there were {', '.join(left)}; put one back, "
            "or choose another run.name to start over"
        )


def remove_unfinished(checkpoints: Path) -> None:
    """Removes what killed saves have left. Only the holder of the run's lock may call this."""
    for leftover in checkpoints.glob(".step-*"):
        final = leftover.with_name(published_name(leftover))
        if leftover.name.endswith(REPLACED) and not final.exists():  # killed between the two renames
            os.rename(leftover, final)
        else:
            shutil.rmtree(leftover, ignore_errors=True)
