"""`pretrain`: next-token training."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from gpt1_ds.commands import key_sweep, shared_options, training_run
from gpt1_ds.commands.parser import Command

if TYPE_CHECKING:
    from gpt1_ds.config import Config
    from gpt1_ds.training.checks import Start


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.config import to_yaml
    from gpt1_ds.tracking.wandb import as_trial
    from gpt1_ds.training.configuration import pretrain_config

    if key_sweep.is_asked(options):
        return key_sweep.run(options, *swept(options.dry_run))
    config = as_trial(pretrain_config(options.config, options.overrides))
    if options.print_config:
        print(to_yaml(config), end="")
        return 0
    return training_run.train(options, config, _plan)


def _plan(start: Start) -> Iterator[str]:
    from gpt1_ds.data.sources import found_data
    from gpt1_ds.plan.report import describe

    yield from describe(start.config, start.world, *found_data(start.config, quietly=True))
    yield from start.first_acts()


def swept(dry_run: bool) -> tuple[key_sweep.Configure, Callable[[Config], None]]:
    """Returns how a trial of `--sweep` is configured, and its data checked; the embedded corpus is made once for all
    trials.
    """
    from gpt1_ds.data.sources import needs_embedded_corpus, open_data, with_embedded_corpus
    from gpt1_ds.training.configuration import pretrain_config

    unmade: list[Config] = []  # of trials on the embedded corpus, before it is there

    def configure(files: Sequence[str], overrides: Sequence[str]) -> Config:
        config = pretrain_config(files, overrides)
        if needs_embedded_corpus(config):
            unmade.append(config)
        return with_embedded_corpus(config, make=False)

    def check(config: Config) -> None:
        if unmade and dry_run:
            return
        for needs in unmade[:1]:
            with_embedded_corpus(needs)
        open_data(config)

    return configure, check


COMMAND = Command(
    "pretrain", "train a model on text; resumes by itself in its run folder", _run, shared_options.training
)
