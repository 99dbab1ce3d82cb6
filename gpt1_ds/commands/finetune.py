"""`finetune`: training on a task, from a checkpoint; `finetune study`: the trials of a study, and what they report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpt1_ds.commands import key_sweep, shared_options, training_run
from gpt1_ds.commands.parser import Command
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.log import say

if TYPE_CHECKING:
    from gpt1_ds.config import Config
    from gpt1_ds.sweep.finetuning_trials import FinetuningSweep
    from gpt1_ds.sweep.pretraining_trials import PretrainingSweep
    from gpt1_ds.training.checks import Start


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.config import to_yaml
    from gpt1_ds.tracking.wandb import as_trial
    from gpt1_ds.training.configuration import check_task, finetune_config, shown_finetune_config

    if key_sweep.is_asked(options):
        return key_sweep.run(options, finetune_config, check_task)
    if options.print_config:
        print(to_yaml(as_trial(shown_finetune_config(options.config, options.overrides))), end="")
        return 0
    return training_run.train(options, as_trial(finetune_config(options.config, options.overrides)), _plan)


def _plan(start: Start) -> Iterator[str]:
    from gpt1_ds.plan.report import describe
    from gpt1_ds.tasks.registry import class_names

    task = start.task.task
    yield f"task: {task.name}, {task.kind} of {', '.join(class_names(task)) or 'scores'}"
    for split, encoded in start.encoded.items():
        longest = f"{encoded.lengths.mean():.1f} tokens a sequence, {encoded.lengths.max()} at most"
        of = f"of {encoded.sequences} sequences"
        if task.reads_tokens:
            of = f"in {len(encoded)} sequences"
        yield f"{split}: {len(encoded.example_ids)} examples {of}, {longest}, {encoded.truncated} cut"
    yield from start.task.notes
    yield from describe(start.config, start.world, start.resolved.model.vocab_size, None, start.steps)
    yield from start.first_acts()


def _study_options(parser: argparse.ArgumentParser) -> None:
    shared_options.study(parser, "finetune/study/books")
    shared_options.jobs(parser)
    parser.add_argument("--dry-run", action="store_true", help="check everything, list the cells and exit")
    part = "try the study in NAME-rehearsal: one seed, an N-th of the text and of the examples (default: all of it)"
    parser.add_argument("--rehearse", type=int, metavar="N", help=part)


def next_sweep(options: argparse.Namespace, make: bool) -> FinetuningSweep | PretrainingSweep:
    """Returns the models of the study of `finetune study` while one is left to train, then its cells. `make` also
    builds the embedded corpus, if a model wants it. Raises UserError for every problem that can be seen before.
    """
    from gpt1_ds.config import load
    from gpt1_ds.data.sources import with_embedded_corpus
    from gpt1_ds.launcher.accelerator import with_fitted_micro_batch
    from gpt1_ds.sweep.finetuning_study import load_study, rehearsed, smaller
    from gpt1_ds.sweep.finetuning_trials import check_tasks, make_sweep
    from gpt1_ds.sweep.pretraining_trials import make_pretraining
    from gpt1_ds.training.configuration import finetune_config, pretrain_config

    study, parts = load_study(options.study), options.rehearse
    study = study if parts is None else rehearsed(study, parts)

    def part(config: Config) -> Config:
        return config if parts is None else smaller(config, parts)

    def sized(config: Config) -> Config:
        return with_fitted_micro_batch(part(config), study.nproc)

    def configure_task(files: Sequence[str], overrides: Sequence[str]) -> Config:
        return part(load(files, overrides))

    def configure(files: Sequence[str], overrides: Sequence[str]) -> Config:
        return sized(finetune_config(files, overrides))

    def configure_model(files: Sequence[str], overrides: Sequence[str]) -> Config:
        return with_embedded_corpus(sized(pretrain_config(files, overrides)), make=make)

    models = make_pretraining(study, configure_model, options.overrides)
    if models is not None:
        models.check()
    if models is not None and models.left:
        check_tasks(study, configure_task, options.overrides, models.configs)
        return models
    sweep = make_sweep(study, configure, options.overrides, models)
    sweep.check()
    return sweep


def _run_study(options: argparse.Namespace) -> int:
    from gpt1_ds.report.study_page import write_study
    from gpt1_ds.sweep import runner
    from gpt1_ds.sweep.finetuning_trials import write_controls
    from gpt1_ds.sweep.pretraining_trials import PretrainingSweep
    from gpt1_ds.sweep.study_file import jobs_at_a_time

    sweep = next_sweep(options, make=not options.dry_run)
    jobs = jobs_at_a_time(sweep.study, options.jobs)
    if options.dry_run:
        print(*sweep.table(), sep="\n")
        return 0
    if isinstance(sweep, PretrainingSweep):
        code = runner.run(sweep, jobs)
        if sweep.left:
            return code
        sweep = next_sweep(options, make=True)
        assert not isinstance(sweep, PretrainingSweep), "no model is left"
    runner.make_folder(sweep)
    cells = sweep
    _write(sweep.folder / "controls.json", lambda: write_controls(cells))  # before: Ctrl-C ends it at once
    folder = sweep.folder
    return runner.run(sweep, jobs, lambda: _write(folder / "study.html", lambda: write_study(folder)))


def _write(file: Path, write: Callable[[], None]) -> None:
    """A study runs without what is not installed."""
    try:
        write()
    except UserError as error:
        _say_once(f"{file.parent}: without {file.name}: {error}")


_say_once = cache(say)  # of what is not installed


COMMANDS = (
    Command(
        "finetune",
        "train on a task, from a checkpoint; resumes by itself in its run folder",
        _run,
        shared_options.training,
    ),
    Command(
        "finetune study", "fine-tune a table of task x variant x seed; resumes where it was", _run_study, _study_options
    ),
)
