"""One trial of a sweep, and the sweep that the runner works off.

A trial is an ordinary run that resumes by itself, so a sweep has no state of its own: the run folders say which trials
are done, and running the sweep again runs the others.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.log import say
from gpt1_ds.common.rundir import RunDir, read_jsonl, why_diverged
from gpt1_ds.common.text import amount
from gpt1_ds.config import Config, load_recorded
from gpt1_ds.scaling.tables import DIVERGED, WAITING, read_table
from gpt1_ds.slurm.tries import newest_step
from gpt1_ds.sweep.study_file import StudySettings
from gpt1_ds.training import claim, resume

TRAINING_KEYS = (  # of the configuration: they change what a run learns, whatever it trains on
    *("run.seed", "optimizer.", "schedule.", "train.precision"),
    *("train.steps", "train.tokens", "train.epochs", "train.global_batch", "train.batch_warmup"),
    "train.label_smoothing",
)
FEW = 3  # runs that a line names
TAKEN_KEYS = ("model.vocab_size", "task.answer")  # a run takes the first from its data; no score has the second


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial(ABC):
    """One run of a sweep; hashed by identity."""

    config: Config
    trunk: Trial | None = None  # the trial from whose checkpoint it starts
    begin: int = 0  # step of that checkpoint

    @cached_property
    def run_dir(self) -> RunDir:
        return RunDir(Path(self.config.run.dir) / self.config.run.name)

    @property
    @abstractmethod
    def done(self) -> bool:
        """Nothing is left to do."""

    @property
    @abstractmethod
    def result(self) -> str:
        """Returns what came out of a trial that is done, in a few words."""

    @abstractmethod
    def must_keep(self, key: str) -> bool:
        """Returns whether a run whose configuration differs in `key` is another trial."""

    @property
    def divergence(self) -> str:
        """Why its run diverged, or nothing. The same run would diverge again."""
        return "" if self.run_dir.done.exists() else why_diverged(list(read_jsonl(self.run_dir.events)))

    @property
    def early_end(self) -> str:
        """Returns how it ended without a result that counts: diverged, or dominated; nothing where it did not."""
        return DIVERGED if self.divergence else ""

    @property
    def ready(self) -> bool:
        """Whether what it starts from exists."""
        return (
            self.trunk is None or bool(newest_step(self.run_dir)) or self.trunk.run_dir.checkpoint(self.begin).is_dir()
        )

    def differences(self) -> Iterator[str]:
        """Yields what its run folder was made with, where that is not what the study now says; one in which no run took
        a step belongs to nobody, unless it diverged there.
        """
        if self.run_dir.config.exists() and (claim.has_record(self.run_dir) or self.divergence):
            before = load_recorded(self.run_dir.config)
            for key, (old, new) in resume.changes(before, self.config).items():
                if self.must_keep(key):
                    yield (
                        f"{self.run_dir.path} ran with {key}={old}, and the study now says {new}; set it back, remove "
                        "the folder, or give the study another name"
                    )


class Sweep(ABC):
    """The trials of a study, in the order in which they start."""

    study: StudySettings
    trials: tuple[Trial, ...]

    @property
    def target(self) -> str:
        """Returns the module:function that a rank runs with a trial's configuration."""
        kind = "pretraining:pretrain" if self.trials[0].config.task is None else "finetuning:finetune"
        return f"gpt1_ds.training.{kind}"

    @property
    def folder(self) -> Path:
        return Path(self.trials[0].config.run.dir) / self.study.name

    @property
    def left(self) -> list[Trial]:
        """The trials that are not done."""
        return [trial for trial in self.trials if not trial.done]

    @property
    def early_ends(self) -> str:
        """Returns how many trials ended without a result that counts, for the end of a sentence: `, 2 diverged`."""
        ends = Counter(end for trial in self.trials if (end := trial.early_end))
        return "".join(f", {number} {end}" for end, number in ends.items())

    @property
    def totals(self) -> str:
        """Returns how many trials there are, and how far they are, as a line."""
        total, left = len(self.trials), len(self.left)
        return f"{self.folder}: {amount(total, 'cell')}, {total - left} done, {left} to do{self.early_ends}"

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Returns what study.json says."""

    def ranks_needed(self, trial: Any) -> int:
        """Returns how many ranks the job of `trial` asks for."""
        return self.study.nproc

    def check(self) -> None:
        """Raises UserError, before anything starts, for what no trial could run with."""
        self.check_configurations()

    def check_configurations(self) -> None:
        """Raises ConfigError for trials that ran with another configuration, or where the folder is a run's. Says which
        runs of the folder have no row.
        """
        ConfigError.raise_all(self.differences())
        for line in self.left_out():
            say(line)

    def differences(self) -> Iterator[str]:
        """Yields what keeps this study from this folder: a run's configuration, trials that ran with another one, or
        results that would be lost.
        """
        if RunDir(self.folder).config.exists():
            yield f"{self.folder} is the folder of a run; give the study or sweep another name"
        for trial in self.trials:
            yield from trial.differences()
        yield from self.others_results()

    def others_results(self) -> Iterator[str]:
        """Yields why the results in the folder would be lost: no cell of this study has run, so they are another's. The
        table that a study writes before its first cell has none: cells that wait, and simple rules, which have no seed.
        """
        file = self.folder / "results.csv"
        if not file.exists() or any(trial.run_dir.path.exists() for trial in self.trials):
            return
        if any(row.text("seed") and row.text("outcome") != WAITING for row in read_table(file, ["seed"])):
            yield (
                f"{file}: holds the results of another study of this name, of whose cells this one has none; give this "
                "one another name, or move that file away"
            )

    def left_out(self) -> Iterator[str]:
        """Yields a line where runs in the folder are no trials: those of an arm that was taken out of the study, or of
        another study of this name that has trials of this one, too.
        """
        own = {trial.run_dir.path for trial in self.trials}
        others = [path.relative_to(self.folder).as_posix() for path in _runs(self.folder) if path not in own]
        if others:
            shown = ", ".join(others[:FEW]) + ", ..." * (len(others) > FEW)
            yield (
                f"{self.folder}: its tables leave out {amount(len(others), 'run')}, of which this study has no cell: "
                f"{shown}; add the cells again, or give the study another name"
            )

    def watch(self, running: Mapping[Any, float], spent: float) -> str:
        """Called several times a second with the running trials and the seconds that each took, and the seconds that
        all trials took so far. Returns why the sweep must stop now, or nothing.
        """
        return ""

    def remove_checkpoints(self) -> None:
        """Removes the checkpoints that no trial needs any more."""
        if self.study.keep_checkpoints:
            return
        kept = [trial for trial in self.trials if trial.run_dir.checkpoints.exists()]  # few, also in a large study
        needed = {trial.trunk for trial in self.trials if trial.trunk in kept and not trial.done}
        for trial in kept:
            if trial not in needed and trial.done:
                shutil.rmtree(trial.run_dir.checkpoints, ignore_errors=True)


def _runs(folder: Path) -> Iterator[Path]:
    """Yields the folders of runs that left something there, but for those inside of a run or of another sweep."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        run_dir = RunDir(path)
        if run_dir.config.exists():
            if claim.has_record(run_dir):
                yield path
        elif not run_dir.study.exists():
            yield from _runs(path)


def tracked(config: Config, study: str, **facts: Any) -> Config:
    """Returns `config` as trackers show a trial: in the group of its study, with the study's name and `facts` beside
    its configuration. A group that a person named stays.
    """
    tracking = config.tracking
    facts = {**tracking.facts, "study": study, **facts}
    return replace(config, tracking=replace(tracking, group=tracking.group or study, facts=facts))
