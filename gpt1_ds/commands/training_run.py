"""Training as `pretrain` and `finetune` do it, once the configuration is known."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt1_ds.config import Config
    from gpt1_ds.training.checks import Start


def say_unread(options: argparse.Namespace, *configs: Config) -> None:
    """Says which keys on the command line no training run of `configs` reads. Rank 0 does, once for all."""
    from gpt1_ds.common.log import say
    from gpt1_ds.config.unread import unread
    from gpt1_ds.tasks.registry import kind_of

    if os.environ.get("RANK", "0") != "0":
        return
    first, *others = (unread(config, options.overrides, kind_of(config.task)) for config in configs)
    for key, line in first.items():
        if all(key in other for other in others):
            say(line)


def train(options: argparse.Namespace, config: Config, plan: Callable[[Start], Iterable[str]]) -> int:
    """Trains as `config` says, or prints what `plan` says of the run for --dry-run. Returns the exit code."""
    from gpt1_ds.launcher import accelerator, launch
    from gpt1_ds.training import restarts
    from gpt1_ds.training.checks import Start

    restarts.check(options.restarts, options.nproc)
    world = launch.world(options.nproc)
    start = Start(accelerator.with_fitted_micro_batch(config, world), world)
    start.check()
    say_unread(options, start.config)
    if options.dry_run:
        print(*plan(start), sep="\n")
        return 0
    start = start.with_corpus()
    if (step := start.finished_step()) is not None:
        start.say_finished(step)
        return 0
    accelerator.prepare(start.config, options.nproc)
    if start.config.task is None:
        function, argument = "pretraining:pretrain", start.resolved
    else:
        function, argument = "finetuning:finetune", start.config
    code = restarts.start(f"gpt1_ds.training.{function}", argument, options.nproc, start.run_dir, options.restarts)
    from gpt1_ds.report.profile_page import update_profile  # which loads what draws

    update_profile(start.config)
    return code
