"""What a run trains on and is measured by: the part in which pre-training and fine-tuning differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpt1_ds.config import Config
from gpt1_ds.config.batch_sizes import BatchSizes
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.objectives.base import Objective
from gpt1_ds.tracking.record import EvalRecord, ScoreRecord, TaskRecord
from gpt1_ds.training.batches import StepBatch

Record = EvalRecord | TaskRecord | ScoreRecord


class Workload(ABC):
    """Every rank has its own and calls it alike. `config` names the vocabulary size."""

    measure = ""  # of pre-training: what `score` is a value of
    held_out_part = ""  # of pre-training: what lines say of a held-out loss that is not of all rows

    config: Config
    tokenizer: Tokenizer
    tokenizer_folder: Path
    tokenizer_hash: str
    data_hash: str
    steps: int  # of the whole run
    batch_sizes: BatchSizes
    flops_per_token: int
    objective: Objective

    @abstractmethod
    def batch(self, number: int, step: int) -> StepBatch:
        """Returns batch `number` (1 is the first), for the update of `step`."""

    @abstractmethod
    def sources(self, number: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Returns where the text of these rows of batch `number` comes from, for people."""

    @abstractmethod
    def is_evaluation_due(self, step: int) -> bool: ...

    @abstractmethod
    def evaluate(self, engine: Engine, step: int, tokens: int) -> list[Record]:
        """Returns what is measured while training; `tokens` were trained on so far."""

    @abstractmethod
    def transfer(self, engine: Engine, folder: Path, load: Callable[[Path], None]) -> None:
        """Gives the engine its first weights from checkpoint.init_from, which is `folder`; `load` takes all of them."""

    def learned(self, engine: Engine, batch: StepBatch) -> dict[str, Any]:
        """Returns fields of the TrainRecord of a step on `batch`, which the engine has just made: what it says besides
        the loss. All ranks call it.
        """
        return {}

    def score(self, records: Sequence[Record]) -> float | None:
        """Returns what makes one evaluation better than another; None: nothing does, and no best checkpoint is kept."""
        return None

    def results_take(self, seconds: float) -> float:
        """Returns the seconds that the results after the last step take, where an evaluation took `seconds`."""
        return 0.0

    def facts(self) -> dict[str, Any]:
        """Returns what a checkpoint's manifest says besides."""
        return {}


Open = Callable[[Config, ProcessGroups, Callable[[], None]], Workload]  # the last: called while it takes long
