"""`finetune study`: the trials of a study, and its table and figure, which grow with every trial."""

from __future__ import annotations

import argparse

from gpt1_ds.common.errors import UserError
from gpt1_ds.common.log import say
from gpt1_ds.report.study_page import write_study
from gpt1_ds.sweep import runner
from gpt1_ds.sweep.finetuning_study import load_study
from gpt1_ds.sweep.finetuning_trials import FinetuningSweep, make_sweep
from gpt1_ds.sweep.study_file import jobs_at_a_time
from gpt1_ds.task_verbs import finetune_config


def finetune_study(options: argparse.Namespace) -> int:
    study = load_study(options.study)
    jobs = jobs_at_a_time(study, options.jobs)
    sweep = make_sweep(study, finetune_config, options.overrides)
    sweep.check()
    if options.dry_run:
        print(*sweep.table(), sep="\n")
        return 0
    return runner.run(sweep, jobs, _Reports(sweep).write)


class _Reports:
    """The table and figure of a study, rewritten by every call. What is not installed is said once."""

    def __init__(self, sweep: FinetuningSweep) -> None:
        self.folder, self._told = sweep.folder, False

    def write(self) -> None:
        try:
            write_study(self.folder)
        except UserError as error:
            if not self._told:
                say(f"{self.folder}: without study.html: {error}")
            self._told = True
