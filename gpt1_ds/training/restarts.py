"""Local ranks that begin again from the last checkpoint after one was lost, and how long that took.

A job of SLURM decides the same in slurm/tries.py. Both write an event `restarted` with the time at which the ranks had
ended; the ranks that then begin write an event `trained again` at their first step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.manifest import step_of
from gpt1_ds.common import log
from gpt1_ds.common.errors import LaunchError, TrainingError, UserError, one_line
from gpt1_ds.common.files import this_node
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.common.text import amount
from gpt1_ds.launcher import launch


def check(restarts: int, nproc: int | None) -> None:
    """Raises LaunchError for restarts that nobody would make."""
    if restarts < 0:
        raise LaunchError(f"--restarts={restarts}: 0 or more")
    if restarts and nproc is None:
        raise LaunchError(
            f"--restarts={restarts}: is for the ranks of --nproc; torchrun has --max-restarts, and a job slurm.restarts"
        )


def start(target: str, arguments: tuple[Any, ...], nproc: int | None, run_dir: RunDir, restarts: int) -> int:
    """Run `module:function` like launch.start. After a rank was lost all local ranks begin again, if a step was saved
    since they began, up to `restarts` times. Raises what ended them else.
    """
    made = 0
    while True:
        began = _newest_step(run_dir)
        try:
            return launch.start(target, arguments, nproc)
        except (UserError, TrainingError) as error:
            step = _newest_step(run_dir)
            if made >= restarts or not error.may_restart:
                raise
            if step <= began:
                log.say(f"--restarts={restarts}: no step was saved since step {began}, so the ranks do not begin again")
                raise
            made += 1
            ended = round(time.time(), 2)
            log.say(f"{error}\nall ranks begin again at step {step} ({made} of {amount(restarts, 'restart')})")
            about = {"host": this_node(), "restarts": made, "reason": one_line(error)}
            run_dir.add_event("restarted", step=step, **about, ended=ended)


def first_step_note(run_dir: RunDir) -> Callable[[int], None]:
    """Returns what rank 0 calls at every step, and that notes at the first one after a restart how many seconds ago the
    ranks before it had ended. To be asked for before the event `started`.
    """
    ended = None
    for event in read_jsonl(run_dir.events):
        if event["event"] in ("restarted", "started"):
            ended = event.get("ended")

    def tell(step: int) -> None:
        nonlocal ended
        if isinstance(ended, (int, float)):
            run_dir.add_event("trained again", step=step, seconds=round(time.time() - ended, 2))
            ended = None

    return tell


def _newest_step(run_dir: RunDir) -> int:
    return max((step_of(path) or 0 for path in steps_in(run_dir.checkpoints)), default=0)
