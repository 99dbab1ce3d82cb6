"""Local ranks that begin again from the last checkpoint after one was lost, and how long that took.

A job of SLURM decides the same in slurm/tries.py. Both write an event `restarted` with the time at which the ranks had
ended; the ranks that then begin write an event `trained again` at their first step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.manifest import step_of
from gpt1_ds.common import log
from gpt1_ds.common.errors import LaunchError, TrainingError, UserError, one_line
from gpt1_ds.common.files import this_node
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.common.text import amount
from gpt1_ds.config import Config
from gpt1_ds.launcher import launch
from gpt1_ds.training.claim import begins_anew


def check(restarts: int, nproc: int | None) -> None:
    """Raises LaunchError for restarts that nobody would make."""
    if restarts < 0:
        raise LaunchError(f"--restarts={restarts}: 0 or more")
    if restarts and nproc is None:
        raise LaunchError(
            f"--restarts={restarts}: is for the ranks of --nproc; torchrun has --max-restarts, and a job slurm.restarts"
        )


def start(target: str, config: Config, nproc: int | None, run_dir: RunDir, restarts: int) -> int:
    """Runs `module:function` of a configuration like launch.start. After a rank was lost all local ranks begin again,
    if a step was saved since they began, up to `restarts` times. Raises what ended them else.
    """
    made = 0
    while True:
        began = _newest(run_dir)
        try:
            return launch.start(target, (config,), nproc)
        except (UserError, TrainingError) as error:
            step, _ = newest = _newest(run_dir)
            if made >= restarts or not error.may_restart:
                raise
            # with resume=never an older run's checkpoints lie there until the ranks have moved them
            is_saved = step > 0 and newest != began if begins_anew(config) else step > began[0]
            if not is_saved:
                why = f"no step was saved since step {began[0]}, so the ranks do not begin again"
                log.say(f"--restarts={restarts}: {why}")
                raise
            made += 1
            if begins_anew(config):  # once is enough
                config = replace(config, checkpoint=replace(config.checkpoint, resume="auto"))
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


def _newest(run_dir: RunDir) -> tuple[int, int]:
    """Returns the step of the newest checkpoint, 0 where there is none, and the inode of its folder."""
    found = steps_in(run_dir.checkpoints)
    return (step_of(found[-1]) or 0, found[-1].stat().st_ino) if found else (0, 0)
