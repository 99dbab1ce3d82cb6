"""`finetune study`: the trials of a study, and its table and figure, which grow with every trial."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpt1_ds.commands import options as shared
from gpt1_ds.commands.parser import Command
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.log import say


def _add_options(parser: argparse.ArgumentParser) -> None:
    shared.study(parser, "finetune/study/books")
    shared.jobs(parser)
    parser.add_argument("--dry-run", action="store_true", help="check everything, list the cells and exit")


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.sweep import runner
    from gpt1_ds.sweep.finetuning_study import load_study
    from gpt1_ds.sweep.finetuning_trials import make_sweep
    from gpt1_ds.sweep.study_file import jobs_at_a_time
    from gpt1_ds.training.finetune_config import finetune_config

    study = load_study(options.study)
    jobs = jobs_at_a_time(study, options.jobs)
    sweep = make_sweep(study, finetune_config, options.overrides)
    sweep.check()
    if options.dry_run:
        print(*sweep.table(), sep="\n")
        return 0
    return runner.run(sweep, jobs, _Reports(sweep.folder).write)


class _Reports:
    """The table and figure of a study, rewritten by every call. What is not installed is said once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._told = folder, False

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
