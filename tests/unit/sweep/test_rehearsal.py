"""A rehearsal has the rows and columns of its study, and a part of everything that takes time."""

from __future__ import annotations

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import load
from gpt1_ds.sweep.finetuning_study import STEP, load_study, named_last, rehearsed, smaller


def test_the_same_table_of_one_seed() -> None:
    study = load_study("finetune/study/grid")
    found = rehearsed(study, 10)
    assert (found.name, found.seeds) == ("grid-rehearsal", [1])
    assert [*found.rows] == [*study.rows]
    assert found.columns == study.columns
    assert found.compare == study.compare
    assert named_last(STEP, study.variants["half depth, LM, as many batches"]) == "500"
    assert named_last(STEP, found.variants["half depth, LM, as many batches"]) == "50"


def test_models_are_shared_with_another_rehearsal() -> None:
    assert rehearsed(load_study("finetune/study/claims_auxiliary"), 2).models == "claims_labels-rehearsal"
    assert rehearsed(load_study("finetune/study/claims_labels"), 2).models == ""


@pytest.mark.parametrize("parts", [1, 0, -3])
def test_it_is_a_part(parts: int) -> None:
    with pytest.raises(ConfigError, match=f"--rehearse={parts}: a rehearsal is a part of the study; write 2 or more"):
        rehearsed(load_study("finetune/study/grid"), parts)


def test_a_model_keeps_the_checkpoints_that_rows_begin_with() -> None:
    whole = load(["pretrain/grid_books_cpu"], ["train.steps=1000", "schedule.warmup_steps=25"])
    found = smaller(whole, 10)
    assert (found.train.steps, found.schedule.warmup_steps) == (100, 2)
    assert (found.checkpoint.every, found.checkpoint.keep_every, found.train.eval_every) == (10, 10, 10)
    assert found.model == whole.model
    assert found.train.global_batch == whole.train.global_batch


def test_tokens_and_passes() -> None:
    assert smaller(load(["pretrain/books_cpu"]), 10).train.tokens == 1_000_000
    found = smaller(load(["pretrain/books_cpu"], ["train.epochs=3", "checkpoint.every=0"]), 10)
    assert found.train.epochs == pytest.approx(0.3)
    assert found.checkpoint.every == 0


def test_examples() -> None:
    counted = ["task.train_examples=3000", "task.scored_examples=500", "train.epochs=3"]
    found = smaller(load(["finetune/sst2"], counted), 10)
    assert found.task is not None
    assert (found.task.train_examples, found.task.scored_examples, found.train.epochs) == (300, 50, 3)
    found = smaller(load(["finetune/sst2"], ["train.epochs=3"]), 10)
    assert found.task is not None
    assert (found.task.train_examples, found.task.scored_examples) == (None, 100)
    assert found.train.epochs == pytest.approx(0.3)
    few = smaller(load(["finetune/sst2"], ["task.train_examples=100"]), 50)
    assert few.task is not None
    assert few.task.train_examples == 16
