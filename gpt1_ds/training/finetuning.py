"""Fine-tuning's workload: a task's examples, scored on its dev split after every epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.checkpoint.transfer import has_pooler, transfer
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import Config
from gpt1_ds.data.tokenizers.registry import encode_alike
from gpt1_ds.data.windows import fingerprint
from gpt1_ds.engine import master_weights
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.evaluation.text_scores import make_scorer
from gpt1_ds.tasks.batches import TrainBatches
from gpt1_ds.tasks.reading import TaskData
from gpt1_ds.tracking.record import TaskRecord
from gpt1_ds.training.batches import StepBatch
from gpt1_ds.training.finetune_config import finetuning_steps
from gpt1_ds.training.workload import Record, Workload

DEV = "dev"
UNDEFINED = -2.0  # JSON has no infinity


class Finetuning(Workload):
    """`data` read from the task's files, encoded with the tokenizer in `tokenizer_folder`."""

    def __init__(self, config: Config, data: TaskData, tokenizer_folder: Path, groups: ProcessGroups) -> None:
        self.scorer = make_scorer(config, data, tokenizer_folder, groups)
        self.config, self.task, self.groups = self.scorer.config, self.scorer.task, groups
        self.tokenizer, self.tokenizer_folder = self.scorer.tokenizer, tokenizer_folder
        self.tokenizer_hash = self.tokenizer.fingerprint
        self.data_hash = "+".join(self.scorer.splits[split].data_hash for split in ("train", DEV))
        self.train = self.scorer.splits["train"]
        config = self.config
        self.batches = TrainBatches(self.train, config.train.global_batch, config.run.seed, self.scorer.multiple)
        self.steps = finetuning_steps(config.train, self.batches.per_epoch)
        self.objective = self.scorer.objective
        self.flops_per_token = self.scorer.flops_per_token()

    def batch(self, number: int, step: int) -> StepBatch:
        batch = self.batches.at(number - 1)
        counted = self.groups.tensor_rank == 0 and self.groups.is_first_stage
        mark = sum(
            fingerprint(batch.tokens[rows].reshape(len(rows), -1), rows.astype(np.int64))
            for rows in self.scorer.shape.rows()
        )
        here = self.scorer.micro_batches(batch, (self.config.run.seed, step))
        tokens = self.scorer.fed(batch)
        return StepBatch(here, (mark + 2**63) % 2**64 - 2**63 if counted else 0, tokens)

    def sources(self, number: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        examples = self.batches.at(number - 1).examples
        return [{"row": int(row), "example": self.train.ids[int(examples[row])]} for row in rows]

    def is_evaluation_due(self, step: int) -> bool:
        return step == self.steps or step % self.batches.per_epoch == 0

    def evaluate(self, engine: Engine, step: int, tokens: int) -> list[Record]:
        return [self.scorer.measure(engine, DEV, step, tokens)[0]]

    def score(self, records: Sequence[Record]) -> float | None:
        """The task's first metric; one that is not defined is worse than any other, all of which are -1 or more."""
        record = records[0]
        assert isinstance(record, TaskRecord), "as `evaluate` gives it"
        value = record.metrics[self.task.metrics[0]]
        return UNDEFINED if value is None else value

    def transfer(self, engine: Engine, folder: Path, load: Callable[[Path], None]) -> None:
        facts = manifest.read(folder)
        other = facts["hashes"]["tokenizer"] != self.tokenizer_hash
        if other and not encode_alike(folder / "tokenizer", self.tokenizer_folder):
            raise CheckpointError(f"{folder}: was trained with another tokenizer than {self.tokenizer_folder}")
        fresh: tuple[int, ...] = ()
        new_symbols = self.task.symbols == "extract" and not self.task.answers
        if new_symbols and "task" not in facts:  # pre-training has not met GPT-1's three symbols
            fresh = (self.tokenizer.start_id, self.tokenizer.delimiter_id, self.tokenizer.extract_id)
        layers, seed = self.scorer.settings.transfer_layers, self.config.run.seed
        self.groups.agree(lambda: transfer(engine, folder, layers, fresh, seed))
        master_weights.publish(engine)  # ranks meet: not where one of them may fail alone
        is_pooled = self.scorer.objective.head.kind == "pooled"
        if self.groups.rank == 0 and is_pooled and layers is None and not has_pooler(StateReader(folder)):
            log.say(f"{folder}: has no pooler: that of the task's head is drawn anew")

    def facts(self) -> dict[str, Any]:
        head = self.scorer.objective.head
        return {"task": self.task.values(), **({} if self.task.answers else {"head": asdict(head)})}
