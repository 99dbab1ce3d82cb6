"""What a run refuses before its first step: one list, which the dry run, the run and a job's first process ask alike
before any rank starts. Never imports torch: login nodes ask, too.

What may change until then is not looked at: another process that holds the folder, a device, the space of a disk, and
the bits of shards and checkpoints, whose hashes the ranks compare.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint, steps_in
from gpt1_ds.checkpoint.store import check_apart
from gpt1_ds.checkpoint.verify import verify_sizes
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, ConfigError, DataError
from gpt1_ds.common.files import read_json, write_json
from gpt1_ds.common.remote import check_address
from gpt1_ds.config import Config, load_recorded, world_problems
from gpt1_ds.config.evaluations import HELD_OUT, KEY
from gpt1_ds.config.validate import cpu_problems
from gpt1_ds.data.dataset import Dataset
from gpt1_ds.data.sources import (
    Data,
    first_passes,
    lacks_embedded_corpus,
    mixture_note,
    open_data,
    row_note,
    with_embedded_corpus,
)
from gpt1_ds.data.staging import staged
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.objectives.pretraining import pretraining_objective
from gpt1_ds.tracking.sinks import library_problems
from gpt1_ds.training import resume, schedule
from gpt1_ds.training.claim import Claim, begins_anew, decide, run_folder
from gpt1_ds.training.configuration import check_task, finetuning_steps, resolved, task_tokenizer

if TYPE_CHECKING:
    from gpt1_ds.tasks.encoding import Encoded
    from gpt1_ds.tasks.reading import TaskData


class Start:
    """A run that is about to begin on `world` ranks, and what has to be read to judge it: each thing once."""

    def __init__(self, config: Config, world: int) -> None:
        self.config, self.world, self.run_dir = config, world, run_folder(config)

    def check(self) -> None:
        """Raises UserError or OSError for the first of CHECKS that refuses this run."""
        for check in CHECKS:
            check(self)

    @cached_property
    def lacks_corpus(self) -> bool:
        """Whether the run first has to build the embedded corpus."""
        return self.config.task is None and lacks_embedded_corpus(self.config)

    @cached_property
    def placed(self) -> Config:
        """The configuration with the folder of the embedded corpus in its place."""
        return self.config if self.config.task is not None else with_embedded_corpus(self.config, make=False)

    def with_corpus(self) -> Start:
        """Returns the same run, checked, on the embedded corpus where it names that, which is built if it is
        missing.
        """
        if not self.lacks_corpus:
            self.config = self.placed
            return self
        start = Start(with_embedded_corpus(self.config), self.world)
        start.check()
        return start

    def first_acts(self) -> list[str]:
        """Returns what the run says before its first step, a line each: what it does with its folder, and of its first
        state, its rows, its sources and its warm-up.
        """
        notes: list[str | None] = []
        if self.data is not None:
            sequences = self.config.batch_sizes.before((self.steps or 0) + 1)
            notes = [row_note(self.config, self.data), mixture_note(self.placed, self.data, sequences)]
        warmup = schedule.warmup_note(self.config.schedule, self.steps or 0)
        return [line for line in (str(self.claim), self._first_note(), *notes, warmup) if line]

    @cached_property
    def data(self) -> Data | None:
        """The text of pre-training; None while the embedded corpus is not built. Raises DataError or ConfigError."""
        return None if self.config.task is not None or self.lacks_corpus else open_data(self.placed)

    @cached_property
    def task(self) -> TaskData:
        """The examples of fine-tuning. Raises DataError or ConfigError."""
        return check_task(self.config)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """That of fine-tuning. Raises DataError or CheckpointError."""
        return load_tokenizer(task_tokenizer(self.config))

    @cached_property
    def encoded(self) -> dict[str, Encoded]:
        """The task's splits as the model reads them."""
        from gpt1_ds.tasks.encoding import fitted, length_limit
        from gpt1_ds.tasks.sequences import encode_examples
        from gpt1_ds.tasks.text import text_limits

        config = self.config
        assert config.task is not None, "fine-tuning has a task"
        task, limit = fitted(self.task.task, config.task, config.model), length_limit(config.task, config.model.context)
        answer = 0
        if task.is_text_to_text:
            limit, answer = text_limits(task, config.task, self.tokenizer, limit, config.model.stacks)
        of = {split: task if split == "train" else task.evaluation_task for split in self.task.splits}
        return {
            split: encode_examples(of[split], examples, self.tokenizer, config.task, limit, answer)
            for split, examples in self.task.splits.items()
        }

    @cached_property
    def resolved(self) -> Config:
        """The configuration as the run saves it; its vocabulary is open while the embedded corpus is not built."""
        return self.placed if self.lacks_corpus else resolved(self.placed)

    @cached_property
    def steps(self) -> int | None:
        """The steps of the whole run; None while they depend on a corpus that is not built. Raises ConfigError."""
        train, task = self.config.train, self.config.task
        if task is not None and task.form == "frozen":
            return 0  # a linear model is fitted at once
        if task is not None:
            from gpt1_ds.tasks.batches import batches_per_epoch
            from gpt1_ds.tasks.mixture import epoch_examples

            groups: Sequence[str] = [example.group for example in self.task.splits["train"]]
            if self.task.task.reads_tokens:
                groups = self.encoded["train"].groups
            return finetuning_steps(train, batches_per_epoch(epoch_examples(task, groups), train.global_batch))
        if self.data is None:
            return None
        once, sources = self.data.training.tokens_per_epoch, first_passes(self.placed, self.data)
        return schedule.total_steps(train, self.config.data, self.config.row, once, sources)

    @property
    def claim(self) -> Claim:
        """What becomes of what lies in the run folder. Raises ConfigError where it belongs to another run."""
        return decide(self.run_dir, self.resolved)

    @property
    def may_be_stored(self) -> bool:
        """Whether the store may have the checkpoint from which this run continues, though its folder has none: it has
        started before. The checkpoint that it began with may be gone by then. Raises ConfigError, as `claim` does.
        """
        has_store = self.config.checkpoint.mirror is not None and self.run_dir.config.is_file()
        return has_store and not begins_anew(self.config) and not self.claim.replaces

    @property
    def data_hash(self) -> str | None:
        """The hash of what the run is trained on, as a manifest has it; None while it is not built."""
        if self.config.task is not None:
            return "+".join(self.encoded[split].data_hash for split in ("train", "dev"))
        return None if self.data is None else self.data.data_hash

    @cached_property
    def newest(self) -> Path | None:
        """The checkpoint from which the run continues, None where there is none, or where the store may have one in
        place of those that are not good. Raises CheckpointError.
        """
        try:
            return resume.newest_readable(self.run_dir)
        except manifest.NewerFormatError:
            raise
        except CheckpointError as error:
            if self.config.checkpoint.mirror is None:
                raise
            log.say(f"{error}; the run asks checkpoint.mirror for one first")
            return None

    def finished_step(self) -> int | None:
        """Returns the last step of a run that is done, where nothing is left to do and no key was changed; None: it
        trains. Call it after `check`.
        """
        folder = self.newest if self.run_dir.done.is_file() else None
        if folder is None or self.claim.replaces or not self.run_dir.config.is_file() or not self._has_results():
            return None
        step = int(manifest.read(folder)["step"])
        changed = resume.changes(load_recorded(self.run_dir.config), self.resolved).keys() - {"checkpoint.resume"}
        is_done = not changed and read_json(self.run_dir.done) == {"step": step} and step >= (self.steps or math.inf)
        return step if is_done else None

    def say_finished(self, step: int) -> None:
        """Rank 0 says that the run is done, to its job, too."""
        if os.environ.get("RANK", "0") != "0":
            return
        if note := self._first_note():
            log.say(note)
        log.say(f"{self.run_dir.path}: done after step {step}")
        if job := os.environ.get("SLURM_JOB_ID"):
            self.run_dir.create(self.config.run.share, job=True)
            write_json(self.run_dir.outcome(job), {"code": 0, "reason": "done", "step": step})

    def _first_note(self) -> str | None:
        if self.claim.replaces or (self.may_be_stored and self.newest is None):
            return None
        return resume.first_note(self.run_dir, self.resolved)

    def _has_results(self) -> bool:
        return self.config.task is None or self.run_dir.evaluation.is_file()


def check_settings(start: Start) -> None:
    """The layout fits the ranks and the device, where it is named, and the libraries of trackers are there."""
    config = start.config
    device = cpu_problems(config) if config.train.device == "cpu" else ()
    ConfigError.raise_all([*world_problems(config, start.world), *device, *library_problems(config)])


def check_place(start: Start) -> None:
    """The run folder can be written, by its owner or group alone; the address of its mirror can be reached with the
    libraries that are installed, which asks nobody, and is not the run folder itself.
    """
    start.run_dir.check_place()
    if (address := start.config.checkpoint.mirror) is not None:
        check_address(address, "checkpoint.mirror", ConfigError)
        check_apart(f"{address}/{start.config.run.name}", start.run_dir.path, "checkpoint.mirror")


def check_tokenizer(start: Start) -> None:
    """The text was built with the tokenizer of the checkpoint that pre-training begins with. This comes before the
    vocabulary's size, which the checkpoint gives, is compared with the text's.
    """
    config = start.config
    continues = steps_in(start.run_dir.checkpoints) and not begins_anew(config)
    named = None if config.task is not None or start.lacks_corpus or continues else resume.named_checkpoint(config)
    if named is None or start.may_be_stored:
        return
    folder = find_checkpoint(Path(named[1]), newest=named[0] == "checkpoint.resume")
    dataset = Dataset(staged(start.placed.data.path[0].path))
    here = dataset.tokenizer_fingerprint
    resume.check_tokenizer(config, folder, manifest.read(folder), here, dataset.tokenizer_folder)


def check_material(start: Start) -> None:
    """The text or the task's examples are there, fit the model, and suffice."""
    if start.config.task is not None:
        start.task  # noqa: B018 - reading it is the check
    elif start.data is not None:
        data = start.data
        pretraining_objective(start.config, data.tokenizer, data.data_hash, start.config.run.seed)


def check_length(start: Start) -> None:
    """The run is not longer than data.epochs_limit allows."""
    start.steps  # noqa: B018 - counting them is the check


def check_folder(start: Start) -> None:
    """The run folder is this run's, or nobody's."""
    start.claim  # noqa: B018 - deciding is the check


def check_first_state(start: Start) -> None:
    """The run can continue from its newest checkpoint, or begin with the one that its configuration names."""
    config = start.resolved
    is_frozen = config.task is not None and config.task.form == "frozen"
    continues = not is_frozen and not start.claim.aside
    if continues and (folder := start.newest) is not None:
        if start.data_hash is not None:
            resume.check_data(config, folder, manifest.read(folder), start.data_hash)
        return
    if continues and start.may_be_stored:
        return
    if (named := resume.named_checkpoint(config)) is None:
        return
    key, source = named
    folder = find_checkpoint(Path(source), newest=key == "checkpoint.resume")
    facts = manifest.read(folder)
    verify_sizes(folder, facts)
    if start.data is not None:
        resume.check_model(config, folder, facts)
    if key == resume.RESUME and start.data_hash is not None:
        resume.check_data(config, folder, facts, start.data_hash)
        resume.check_moments(config, folder, facts)
        resume.check_steps_left(config, folder, facts, start.steps or 0)


def check_evaluations(start: Start) -> None:
    """What train.evaluations and checkpoint.best name is there."""
    config, best = start.config, start.config.checkpoint.best
    problems: list[str] = []
    for one in config.train.evaluations:
        if not one.lm_eval:
            from gpt1_ds.tasks.zeroshot import read_probe  # which loads all tasks
            from gpt1_ds.training.linear_task import read_linear

            try:
                if one.is_probe:
                    read_probe(one)
                else:
                    read_linear(one)
            except DataError as error:
                problems += [f"{KEY}: {problem}" for problem in error.problems]
        elif find_spec("lm_eval") is None:
            problems.append(
                f"{KEY}: lm_eval={one.lm_eval}: lm-evaluation-harness is not installed; pip install 'gpt1-ds[lm-eval]'"
            )
        elif one.lm_eval.endswith((".yaml", ".yml")) and not Path(one.lm_eval).is_file():
            problems.append(f"{KEY}: lm_eval={one.lm_eval}: no such task file")
    if best is not None and start.data is not None and start.data.held_out is None and best.startswith(f"{HELD_OUT}."):
        problems.append(
            f"checkpoint.best={best}: {start.placed.data.path[0].path} has no held-out text; build it with "
            "--validation above 0"
        )
    ConfigError.raise_all(problems)


CHECKS: tuple[Callable[[Start], None], ...] = (
    check_settings,
    check_place,
    check_tokenizer,
    check_material,
    check_length,
    check_evaluations,
    check_folder,
    check_first_state,
)
