"""Every kind of task survives a checkpoint, and says by itself what its head gives."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest

from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.config.task import Kind
from gpt1_ds.tasks.base import NO_LABEL, Task
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.kinds import (
    KINDS,
    Choice,
    Classification,
    Generation,
    Regression,
    Sentences,
    Similarity,
    Span,
    Tagging,
    from_values,
)

LABELS = ("no", "yes", "perhaps")
TASKS: tuple[Task, ...] = (
    Classification("c", "pair", LABELS, ("accuracy",)),
    Similarity("s", "both", LABELS[:2], ("f1",)),
    Regression("r", "both", (), ("pearson",), (1.0, 3.0)),
    Choice("q", "choice", LABELS, ("accuracy",)),
    Sentences("v", "sentences", LABELS, ("spearman",), loss="triplet"),
    Span("a", "pair", ("answer", "no answer"), ("f1",)),
    Tagging("t", "single", LABELS, ("entity_f1",)),
    Generation("w", "single", (), ("bleu",), prefix="say: "),
)


def test_every_name_has_a_class_and_every_class_a_name() -> None:
    assert tuple(KINDS) == get_args(Kind) == tuple(task.kind for task in TASKS)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_a_task_survives_a_manifest(task: Task) -> None:
    values = json.loads(json.dumps(task.values()))
    assert list(values)[:3] == ["name", "kind", "layout"], "as checkpoints have had it"
    assert from_values(values) == task


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "tagging of everything"), ("kind", None), ("kind", ["choice"]), ("layout", "heap"), ("name", "a\nb"),
        ("labels", []), ("metrics", []), ("score_range", [2, 1]), ("loss", "nli"), ("symbols", 3), ("more", 1),
    ],
)  # fmt: skip
def test_other_values_are_no_task(key: str, value: Any) -> None:
    values = {**TASKS[0].values(), key: value}
    with pytest.raises(TypeError):
        from_values(values)


def test_vectors_have_a_loss() -> None:
    with pytest.raises(TypeError):
        from_values({**TASKS[4].values(), "loss": None})


def test_outputs_sequences_and_classes() -> None:
    found = [(task.outputs, task.sequences, task.classes) for task in TASKS]
    assert found == [(3, 1, 3), (2, 2, 2), (6, 2, 6), (1, 3, 3), (3, 3, 3), (2, 1, 2), (3, 1, 3), (1, 1, 1)]
    assert [task.head(TaskConfig(name="x", path="x"), ModelConfig()).choice for task in TASKS] == [
        *(False, False, False, True, False, False, False, False)
    ]


def test_what_the_head_says_becomes_a_prediction_and_a_word() -> None:
    scores_NK = np.array([[0.0, 5.0, 1.0], [3.0, 0.0, 0.0]], dtype=np.float32)
    for task in (TASKS[0], TASKS[3]):
        assert task.predictions(scores_NK).tolist() == [1, 0]
        assert [task.format_prediction(one) for one in task.predictions(scores_NK).tolist()] == ["yes", "no"]
    sure = np.full((2, 6), -50, dtype=np.float32)
    sure[[0, 1], [0, 5]] = 50
    np.testing.assert_allclose(TASKS[2].predictions(sure), [1.0, 3.0])
    assert [TASKS[2].format_prediction(score) for score in (0.5, 2.34567)] == ["1.000", "2.346"]
    cosine = TASKS[4].evaluation_task
    assert (cosine.name, cosine.has_scores, cosine.outputs) == ("sts", True, 1)
    assert cosine.predictions(scores_NK).tolist() == [0.0, 3.0]


def test_answers_of_unknown_examples() -> None:
    unknown, known = Example("0", ("x",)), Example("0", ("x",), label="yes")
    assert [TASKS[0].answer_number(one) for one in (unknown, known)] == [NO_LABEL, 1]
    assert TASKS[2].answer_number(unknown) == NO_LABEL
