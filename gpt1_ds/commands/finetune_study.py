"""`finetune study`: the cells of a study, and its table and figure, which grow with every cell."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gpt1_ds.commands import options as shared
from gpt1_ds.commands.parser import Command
from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.common.log import say

if TYPE_CHECKING:
    from gpt1_ds.training.cells import Plan

FINETUNE = "gpt1_ds.training.finetune:finetune"  # what a rank of a cell runs


def _add_options(parser: argparse.ArgumentParser) -> None:
    shared.study(parser, "finetune/study/books")
    shared.jobs(parser)
    parser.add_argument("--dry-run", action="store_true", help="check everything, list the cells and exit")


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.config.study import load_study
    from gpt1_ds.training import cells, study
    from gpt1_ds.training.finetune_config import finetune_config

    settings = load_study(options.study)
    jobs = settings.jobs if options.jobs is None else options.jobs
    if jobs < 1:
        raise ConfigError(f"--jobs={jobs}: at least 1 cell runs at a time")
    plan = cells.plan(settings, finetune_config, options.overrides)
    cells.check(plan)
    if options.dry_run:
        _print_plan(plan)
        return 0
    return study.run(plan, jobs, _Reports(plan).write, FINETUNE)


def _print_plan(plan: Plan) -> None:
    from gpt1_ds.training import study

    for cell in plan.cells:
        print(f"{'done ' if cell.done else 'to do'}  {cell}")
    waiting = len(study.left(plan))
    print(f"{plan.folder}: {len(plan.cells)} cells, {len(plan.cells) - waiting} done, {waiting} to do")


class _Reports:
    """The table and figure of a study, rewritten by every call. What is not installed is said once."""

    def __init__(self, plan: Plan) -> None:
        self.folder, self._told = plan.folder, False

    def write(self) -> None:
        from gpt1_ds.report.study_page import write_study

        try:
            write_study(self.folder)
        except UserError as error:
            if not self._told:
                say(f"{self.folder}: without study.html: {error}")
            self._told = True


COMMAND = Command(
    "finetune study", "fine-tune a table of task x variant x seed; resumes where it was", _run, _add_options
)
