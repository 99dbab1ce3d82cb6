"""`slurm submit` of many runs: studies, and `--sweep` of `pretrain` and `finetune`, as arrays of jobs."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt1_ds.commands import finetune, key_sweep, pretrain
from gpt1_ds.commands.parser import Members, joined, parse_words
from gpt1_ds.common.errors import LaunchError
from gpt1_ds.common.text import amount

if TYPE_CHECKING:
    from gpt1_ds.sweep.trial import Sweep

STUDY = "finetune study"


def sweep_of(members: Members, words: Sequence[str], own: argparse.Namespace) -> tuple[Sweep | None, list[str]]:
    """(the sweep of a command line of the program, the words that collect it); None for one that is no sweep."""
    from gpt1_ds.sweep.scaling_sweep import read_sweep
    from gpt1_ds.training.configuration import check_task, finetune_config

    told = [f"slurm.after=[{','.join(own.after)}]"] if own.after else []
    if list(words[:2]) == ["scaling", "run"]:
        asked = parse_words(members, words)
        sweep = read_sweep(asked.study, [*asked.overrides, *told], prepare=not own.dry_run)
        return sweep, ["scaling", "collect", asked.study, *asked.overrides]
    command = joined(members, words)[0]
    if command not in ("pretrain", "finetune", STUDY):
        return None, []
    asked = parse_words(members, words)
    asked.overrides = [*asked.overrides, *told]
    if command == STUDY:
        return _of_study(asked, list(words), own)
    if not key_sweep.is_asked(asked):
        return None, []
    parts = (finetune_config, check_task) if command == "finetune" else pretrain.swept(own.dry_run)
    return key_sweep.make(asked, *parts), list(words)


def _of_study(asked: argparse.Namespace, words: list[str], own: argparse.Namespace) -> tuple[Sweep, list[str]]:
    """The models of a study, whose last job submits the cells; their last job writes the page."""
    from gpt1_ds.sweep.pretraining_trials import PretrainingSweep

    sweep = finetune.next_sweep(asked, make=not own.dry_run)
    if not isinstance(sweep, PretrainingSweep):
        return sweep, words
    if own.stage > 1:
        left = ", ".join(map(str, sweep.left))
        raise LaunchError(f"{sweep.folder}: were not trained: {left}; their jobs' output says why; submit it again")
    return sweep, ["slurm", "submit", *words, "--stage", "2"]


def submit(sweep: Sweep, last: Sequence[str], own: argparse.Namespace) -> int:
    """Submit the cells that are not done and the job that collects them, or show what would be. The exit code."""
    from gpt1_ds.sweep import arrays

    jobs = sweep.trials[0].config.slurm.jobs
    submission = arrays.prepare(sweep, jobs, last)
    if not submission.arrays:
        print(f"{sweep.folder}: all cells are done")
        return 0
    if own.dry_run:
        print(*submission.lines(), sep="\n")
        return 0
    sweep.check()
    *numbers, collecting = arrays.submit(sweep, submission)
    if own.parsable:
        print(collecting)
        return 0
    for number, array in zip(numbers, submission.arrays, strict=True):
        many = f", {jobs} at a time" if jobs else ""
        print(f"job {number}: {amount(len(array.trials), 'cell')}{many}: {array.manifest}")
    print(f"job {collecting}, then: gpt1-ds {shlex.join(last)}")
    return 0
