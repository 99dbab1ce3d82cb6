"""`finetune study`: the cells of a study, and its table and figure, which grow with every cell."""

from __future__ import annotations

import argparse

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config.study import load_study
from gpt1_ds.task_verbs import finetune_config
from gpt1_ds.training import cells, study
from gpt1_ds.training.cells import Plan


def finetune_study(options: argparse.Namespace) -> int:
    settings = load_study(options.study)
    jobs = settings.jobs if options.jobs is None else options.jobs
    if jobs < 1:
        raise ConfigError(f"--jobs={jobs}: at least 1 cell runs at a time")
    plan = cells.plan(settings, finetune_config, options.overrides)
    cells.check(plan)
    if options.dry_run:
        _print_plan(plan)
        return 0
    return study.run(plan, jobs, lambda: _write_reports(plan))


def _print_plan(plan: Plan) -> None:
    for cell in plan.cells:
        print(f"{'done ' if cell.done else 'to do'}  {cell}")
    waiting = len(plan.waiting)
    print(f"{plan.folder}: {len(plan.cells)} cells, {len(plan.cells) - waiting} done, {waiting} to do")


def _write_reports(plan: Plan) -> None: ...
