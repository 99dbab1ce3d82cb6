"""Whose a run folder is, and what a run that begins there does with what it finds. Never imports torch.

A checkpoint claims its folder: the run continues from it, and a configuration of another run is refused. Without a
checkpoint nothing can be continued, so another configuration takes the folder, out loud: it replaces a configuration
under which no step was logged, and moves the record of logged steps aside. `checkpoint.resume=never` moves everything
aside. Nothing is deleted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common import log
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.rundir import RUN_VARIABLE, RunDir, read_jsonl
from gpt1_ds.config import Config, load_recorded
from gpt1_ds.training import resume

CONTINUES = "GPT1_DS_CONTINUES"  # set for a job that follows another one of the same run; by launch/next.sh
STAYS = ("slurm",)  # notes of jobs, of which one may be this one


@dataclass(frozen=True)
class Claim:
    """What a run that begins does first: nothing, replace the configuration, or also move what is there aside."""

    run_dir: RunDir
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # key -> (before, now) that make another run
    replaces: bool = False
    aside: Path | None = None  # where what is there is moved
    why: str = ""

    def __str__(self) -> str:
        """Returns one line for people; empty where nothing happens."""
        if not self.replaces:
            return ""
        keys = ", ".join(f"{key} {old!r} -> {new!r}" for key, (old, new) in self.changed.items())
        moved = f"; what is there moves to {self.aside}" if self.aside else ""
        return f"{self.run_dir.path}: {self.why}: a new run begins{moved}{f' ({keys})' if keys else ''}"


def run_folder(config: Config) -> RunDir:
    """Returns the folder of the run that a configuration names."""
    return RunDir(Path(config.run.dir) / config.run.name)


def decide(run_dir: RunDir, config: Config) -> Claim:
    """Returns what a run with this configuration does with the folder. Nothing is written.

    Raises ConfigError naming every changed key where the folder belongs to another run, or where it is a study's.
    """
    if run_dir.study.exists():
        raise ConfigError(f"run.name: {run_dir.path} is the folder of a sweep or study; choose another name")
    saved, trained = _is_saved(run_dir), _is_trained(run_dir)
    if begins_anew(config) and (saved or trained):
        return Claim(run_dir, replaces=True, aside=_free(run_dir), why="checkpoint.resume=never")
    if saved and config.task is not None and config.task.form == "frozen":
        raise ConfigError(f"run.name: {run_dir.path} holds the checkpoints of another run; choose another name")
    if not run_dir.config.exists():
        return Claim(run_dir)
    try:
        changes = resume.changes(load_recorded(run_dir.config), config)
        changed = resume.forbidden(changes, config.checkpoint.grows_at_resume)
        if config.model.vocab_size is None:  # the tokenizer's, which is not there yet
            changed.pop("model.vocab_size", None)
    except ConfigError:  # damaged, or of another version
        if saved:
            raise
        return Claim(run_dir, replaces=True, aside=_free(run_dir), why=f"{run_dir.config.name} cannot be read")
    if not changed:
        return Claim(run_dir)
    if saved:
        resume.check(str(run_dir.path), changed)
    if not trained:
        return Claim(run_dir, changed, replaces=True, why="no step was trained there")
    why = f"nothing was saved of its {_logged_steps(run_dir)} logged steps, so that nothing can be continued"
    return Claim(run_dir, changed, True, _free(run_dir), why)


def has_record(run_dir: RunDir) -> bool:
    """Returns whether a run has left a step, a checkpoint or a result there."""
    return _is_saved(run_dir) or _is_trained(run_dir)


def take(run_dir: RunDir, config: Config) -> None:
    """Does what `decide` says. Only the holder of the run's lock may call this, before it opens a log there."""
    claim = decide(run_dir, config)
    if not claim.replaces:
        return
    if claim.aside is None:
        for path in (run_dir.config, run_dir.environment):
            path.unlink(missing_ok=True)
    else:
        claim.aside.mkdir()
        for path in _entries(run_dir):
            os.rename(path, claim.aside / path.name)
        run_dir.create(config.run.share, job="SLURM_JOB_ID" in os.environ)
    log.say(str(claim))
    changes = {key: list(pair) for key, pair in claim.changed.items()}
    moved = {"moved_to": str(claim.aside)} if claim.aside else {}
    run_dir.add_event("replaced", reason=claim.why, changes=changes, **moved)


def begins_anew(config: Config) -> bool:
    """Returns whether `checkpoint.resume=never` is still to be done: the next job of a run, a process of a job that has
    taken the folder, and ranks that torchrun starts again continue.
    """
    counts = (os.environ.get(name, "0") for name in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"))
    restarted = any(count not in ("", "0") for count in counts)
    continues = restarted or CONTINUES in os.environ or RUN_VARIABLE in os.environ
    return config.checkpoint.resume == "never" and not continues


def _entries(run_dir: RunDir) -> list[Path]:
    """Returns what a run left there; its configuration comes last, so that a move that is cut off can be seen."""
    if not run_dir.path.is_dir():
        return []
    found = [path for path in run_dir.path.iterdir() if path.name not in STAYS and not _is_lock(run_dir, path)]
    return sorted(found, key=lambda path: (path == run_dir.config, path.name))


def _is_lock(run_dir: RunDir, path: Path) -> bool:
    return path.name.startswith(run_dir.lock.name)


def _is_saved(run_dir: RunDir) -> bool:
    """Returns whether there are checkpoints, or were some."""
    damaged = any(run_dir.checkpoints.glob("step-*.damaged-*"))
    return damaged or run_dir.latest.exists() or bool(steps_in(run_dir.checkpoints))


def _is_trained(run_dir: RunDir) -> bool:
    return run_dir.done.exists() or run_dir.evaluation.exists() or _logged_steps(run_dir) > 0


def _logged_steps(run_dir: RunDir) -> int:
    return max((line["step"] for line in read_jsonl(run_dir.metrics) if line["kind"] == "train"), default=0)


def _free(run_dir: RunDir) -> Path:
    number, name = 1, run_dir.path.name
    while os.path.lexists(path := run_dir.path.with_name(f"{name}.replaced-{number}")):
        number += 1
    return path
