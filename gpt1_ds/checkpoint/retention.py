"""Which checkpoints of a run folder stay, which are set aside, which are deleted. Rank 0 alone calls these.

A checkpoint is published after it was read back, so what is older than the newest `keep` was never the only good one.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from pathlib import Path

from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config.checkpoint import CheckpointConfig

REPLACED = ".replaced"  # after the name of an older checkpoint of the same step while it makes room


def prune(run_dir: RunDir, settings: CheckpointConfig) -> None:
    """Delete what is older than the newest `keep`, except multiples of `keep_every` and what `latest` and `best` name.
    What the disk keeps is said.
    """
    try:
        _prune(run_dir, settings)
    except OSError as error:
        log.say(f"{error.filename}: {error.strerror}: an old checkpoint could not be deleted")


def _prune(run_dir: RunDir, settings: CheckpointConfig) -> None:
    pointers = [path for path in (run_dir.latest, run_dir.best) if path.exists()]
    named = {path.read_text(errors="replace").strip() for path in pointers}
    for folder in steps_in(run_dir.checkpoints)[: -settings.keep]:
        step = int(folder.name.removeprefix("step-"))
        if folder.name not in named and not (settings.keep_every and step % settings.keep_every == 0):
            doomed = folder.with_name(f".{folder.name}.old")  # renamed first: never half a checkpoint in place
            os.rename(folder, doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def settle(run_dir: RunDir, newest: Path, bad: list[tuple[Path, str]]) -> None:
    """`newest` was loaded: set the newer ones aside, each with its problem, and let `latest` name it."""
    for folder, problem in bad:
        name = f"{folder.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
        os.rename(folder, folder.with_name(name))
        log.say(f"{problem}; set aside as {name}")
        run_dir.add_event("set aside", checkpoint=folder.name, to=name, problem=problem)
    latest = run_dir.latest
    named = latest.read_text(errors="replace").strip() if latest.is_file() else "nothing"
    if named != newest.name:
        log.say(f"{latest} names {named[:80]}; the newest good checkpoint is {newest.name}")
        run_dir.add_event("stale latest", named=named[:80], newest=newest.name)
        write_atomic(latest, newest.name + "\n")


def refuse_to_start_over(run_dir: RunDir) -> None:
    """No checkpoint is there: raise CheckpointError if there were some, training from scratch would bury them."""
    left = sorted(path.name for path in run_dir.checkpoints.glob("step-*.damaged-*"))
    if run_dir.latest.exists():
        left.append(run_dir.latest.read_text(errors="replace").strip()[:80])
    if left:
        raise CheckpointError(
            f"{run_dir.checkpoints}: no good checkpoint is left, there were {', '.join(left)}; put one back, "
            "or choose another run.name to start over"
        )


def remove_unfinished(checkpoints: Path) -> None:
    """Remove what killed saves have left. Only the holder of the run's lock may call this."""
    for leftover in checkpoints.glob(".step-*"):
        final = leftover.with_name(leftover.name.removeprefix(".").removesuffix(REPLACED))
        if leftover.name.endswith(REPLACED) and not final.exists():  # killed between the two renames
            os.rename(leftover, final)
        else:
            shutil.rmtree(leftover, ignore_errors=True)
