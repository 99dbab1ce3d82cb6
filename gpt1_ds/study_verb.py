"""`finetune study`: the cells of a study, and its table and figure, which grow with every cell."""

from __future__ import annotations

import argparse

from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.common.log import say
from gpt1_ds.report.study_page import write_study
from gpt1_ds.sweep import finetuning_trials, runner
from gpt1_ds.sweep.finetuning_study import load_study
from gpt1_ds.sweep.finetuning_trials import Plan
from gpt1_ds.task_verbs import finetune_config

FINETUNE = "gpt1_ds.training.finetune:finetune"  # what a rank of a cell runs


def finetune_study(options: argparse.Namespace) -> int:
    settings = load_study(options.study)
    jobs = settings.jobs if options.jobs is None else options.jobs
    if jobs < 1:
        raise ConfigError(f"--jobs={jobs}: at least 1 cell runs at a time")
    plan = finetuning_trials.plan(settings, finetune_config, options.overrides)
    finetuning_trials.check(plan)
    if options.dry_run:
        _print_plan(plan)
        return 0
    return runner.run(plan, jobs, _Reports(plan).write, FINETUNE)


def _print_plan(plan: Plan) -> None:
    for cell in plan.cells:
        print(f"{'done ' if cell.done else 'to do'}  {cell}")
    waiting = len(runner.left(plan))
    print(f"{plan.folder}: {len(plan.cells)} cells, {len(plan.cells) - waiting} done, {waiting} to do")


class _Reports:
    """The table and figure of a study, rewritten by every call. What is not installed is said once."""

    def __init__(self, plan: Plan) -> None:
        self.folder, self._told = plan.folder, False

    def write(self) -> None:
        try:
            write_study(self.folder)
        except UserError as error:
            if not self._told:
                say(f"{self.folder}: without study.html: {error}")
            self._told = True
