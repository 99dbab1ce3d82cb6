"""`train.evaluations`: what a run of pre-training asks its own model every n steps, and which value says what is best.

Every rank puts the whole model together in fp32 from the parts of all ranks, answers its part of the questions, and
drops the model again. `evaluate` does the same with a checkpoint, so that of the same step has the same scores.
Nothing that training reads is written: batches, dropout masks and weights are those of a run without evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint.whole import for_one_rank, of_engine
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, ConfigError, DataError, TrainingError
from gpt1_ds.config import Config
from gpt1_ds.config.evaluations import HELD_OUT, KEY, LINEAR, EvaluationConfig, measured
from gpt1_ds.config.task import PREFIX
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.evaluation.continuations import Continuations, written_at_most
from gpt1_ds.evaluation.embed import Embedder, shared_vectors
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.evaluation.probes import frame_for, probe_metrics
from gpt1_ds.tasks.reading import TaskData
from gpt1_ds.tasks.zeroshot import Probe, read_probe
from gpt1_ds.tracking.record import EvalRecord, ScoreRecord
from gpt1_ds.training.frozen import linear_scores, texts_of
from gpt1_ds.training.linear_task import read_linear
from gpt1_ds.training.workload import Record

if TYPE_CHECKING:
    from gpt1_ds.interop.harness import Tasks


@dataclass(frozen=True)
class Evaluation:
    """One of train.evaluations with its questions, one of three: a probe's, tasks of lm-evaluation-harness, or the
    examples of a task that a linear model learns.
    """

    settings: EvaluationConfig
    probe: Probe | None = None
    tasks: Tasks | None = None
    data: TaskData | None = None


class Evaluations:
    """Measures train.evaluations. All ranks call every method together."""

    def __init__(self, config: Config, steps: int, tokenizer: Tokenizer, groups: ProcessGroups) -> None:
        """Reads all questions. Raises DataError for files that are not there, ConfigError for a tokenizer that cannot
        ask them, and for a checkpoint.best that nothing measures.
        """
        self.config, self.steps, self.tokenizer, self.groups = config, steps, tokenizer, groups
        settings = config.train.evaluations
        most_written = written_at_most(config, frame_for(config, tokenizer)) if settings else 0
        self.evaluations = groups.agree(lambda: [_open(one, most_written) for one in settings])
        self.higher_is_better = measured(settings, config.objective.kind == "masked")  # by the name of the value
        for evaluation in self.evaluations:
            if evaluation.tasks is not None:
                self.higher_is_better |= evaluation.tasks.directions()
            if evaluation.data is not None:
                task = evaluation.data.task
                self.higher_is_better |= {f"{LINEAR}{task.name}.{metric}": True for metric in task.metrics}
        best = config.checkpoint.best
        if best is not None and best not in self.higher_is_better:
            raise ConfigError(f"checkpoint.best={best} is not measured; choose {', '.join(self.higher_is_better)}")

    def due(self, step: int) -> list[Evaluation]:
        """Returns those that are measured after `step`."""
        every = self.config.train.eval_every
        return [one for one in self.evaluations if one.settings.is_due(step, self.steps, every)]

    def measure(self, engine: Engine, head: HeadSpec | None, step: int, tokens: int) -> list[ScoreRecord]:
        """Returns the scores of those that are due. Raises TrainingError where the model's numbers are not finite."""
        if not (due := self.due(step)):
            return []
        engine.progress("evaluation")
        alone = for_one_rank(self.config)
        model = of_engine(engine, self.config, head)
        model.layers[0].register_forward_pre_hook(lambda *_: engine.progress("evaluation"))  # long ones are no hang
        loaded = Loaded(model, self.tokenizer, alone, step, Path(f"step {step}"))
        try:
            return [record for evaluation in due for record in self._measure(evaluation, loaded, step, tokens)]
        except CheckpointError as error:
            raise TrainingError(f"{error.problems[0].partition(';')[0]}; lower optimizer.lr") from None

    def _measure(self, evaluation: Evaluation, loaded: Loaded, step: int, tokens: int) -> list[ScoreRecord]:
        log.doing(f"asks {evaluation.settings.shown}")
        entries: list[dict[str, Any]]
        if (probe := evaluation.probe) is not None:
            metrics = probe_metrics(probe, loaded, self.groups)
            entries = [{"task": PREFIX + probe.title, "split": probe.split, "metrics": metrics}]
        elif (data := evaluation.data) is not None:
            scores = self._fit_and_score(data, Embedder(loaded))
            entries = [{"task": f"{LINEAR}{data.task.name}", "split": "dev", "metrics": scores}]
        else:
            from gpt1_ds.interop import harness

            assert evaluation.tasks is not None, "an evaluation has one of the three"
            entries = harness.run(Continuations(loaded, self.groups), evaluation.tasks, evaluation.settings.limit)
        return [ScoreRecord(step=step, tokens=tokens, **entry) for entry in entries]

    def _fit_and_score(self, data: TaskData, embedder: Embedder) -> dict[str, float | None]:
        """Returns the scores of dev by a linear model of the vectors, which rank 0 fits."""
        vectors = shared_vectors(embedder, texts_of(data), self.groups, watched=False)
        return self.groups.on_rank_0(
            lambda: next(one.metrics for one in linear_scores(data, vectors) if one.split == "dev")
        )

    def score(self, records: Sequence[Record]) -> float | None:
        """Returns the value of checkpoint.best among `records`, higher being better; None where it was not measured, or
        is not finite.
        """
        best = self.config.checkpoint.best
        if best is None:
            return None
        value = _values(records).get(best)
        if value is None or not math.isfinite(value):
            return None
        return value if self.higher_is_better[best] else -value


def _open(settings: EvaluationConfig, most_written: int) -> Evaluation:
    """Reads the questions of an evaluation, for a model that writes at most so many tokens."""
    if settings.is_probe:
        return Evaluation(settings, probe=read_probe(settings))
    if settings.linear:
        return Evaluation(settings, data=read_linear(settings))
    from gpt1_ds.interop import harness  # which needs the extra lm-eval

    try:
        tasks = harness.load_tasks([settings.lm_eval])
        harness.check(tasks, most_written)
    except (ConfigError, DataError) as error:
        where = f"{KEY}: lm_eval="
        raise type(error)(*(problem.replace("--lm-eval ", where, 1) for problem in error.problems)) from None
    return Evaluation(settings, tasks=tasks)


def _values(records: Sequence[Record]) -> dict[str, float | None]:
    """Returns every measured value by its name, like eval.loss, blimp.accuracy and linear/sst2.accuracy."""
    values: dict[str, float | None] = {}
    for record in records:
        where = HELD_OUT
        if not isinstance(record, EvalRecord):
            where = record.task if record.task.startswith(LINEAR) else record.task.partition("/")[2]
        values |= {f"{where}.{key}": value for key, value in record.metrics.items()}
    return values
