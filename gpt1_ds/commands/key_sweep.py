"""`--sweep` of `pretrain` and `finetune`: from the options to a table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpt1_ds.commands import training_run
from gpt1_ds.common.errors import ConfigError, LaunchError, UserError

if TYPE_CHECKING:
    from gpt1_ds.config import Config
    from gpt1_ds.sweep.key_sweep import KeySweep

Configure = Callable[[Sequence[str], Sequence[str]], "Config"]  # (files, overrides) -> one run's configuration


def is_asked(options: argparse.Namespace) -> bool:
    """Returns whether --sweep is given. Raises UserError for an option of it alone."""
    if options.jobs is not None and not options.sweep:
        raise UserError(f"--jobs {options.jobs} is how many runs of a sweep run at a time; give --sweep, too")
    return bool(options.sweep)


def run(options: argparse.Namespace, configure: Configure, check: Callable[[Config], object]) -> int:
    """Runs the trials that are not done, some at a time, or lists them. The exit code is the runner's."""
    from gpt1_ds.sweep import runner

    sweep = make(options, configure, check)
    code = 0
    if not options.dry_run:
        code = runner.run(sweep, sweep.study.jobs, sweep.write)
    print(*sweep.table(), sep="\n")
    return code


def make(options: argparse.Namespace, configure: Configure, check: Callable[[Config], object]) -> KeySweep:
    """Returns the sweep that the options say. `check` raises UserError for data that a run cannot use; all are
    checked.
    """
    from gpt1_ds.launcher import launch
    from gpt1_ds.sweep.key_sweep import make_key_sweep

    if options.print_config:
        raise UserError("--print-config shows the configuration of one run; leave --sweep out")
    if options.restarts:
        raise UserError("--restarts is for the ranks of one run; leave --sweep out")
    if options.nproc is None and launch.world(None) > 1:
        raise LaunchError("--sweep starts the ranks of its runs: call the program once, with --nproc")

    def configured(arguments: Sequence[str]) -> Config:
        return _fitted(configure(options.config, [*options.overrides, *arguments]), options.nproc or 1)

    sweep = make_key_sweep(options.sweep, configured, options.nproc, options.jobs)
    sweep.check()
    training_run.say_unread(options, *(trial.config for trial in sweep.trials))
    checked: list[object] = []
    for config in (trial.config for trial in sweep.left):
        read = (config.data, config.task, config.model, config.objective, config.train, config.checkpoint)
        if read not in checked:
            check(config)
            checked.append(read)
    return sweep


def _fitted(config: Config, world: int) -> Config:
    from gpt1_ds.config import world_problems
    from gpt1_ds.launcher import accelerator
    from gpt1_ds.tracking.sinks import library_problems

    config = accelerator.with_fitted_micro_batch(config, world)
    ConfigError.raise_all([*world_problems(config, world), *library_problems(config)])
    return config
