"""How a fine-tuning run ends in a job."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpt1_ds.common.rundir import read_jsonl
from gpt1_ds.config import ModelConfig
from gpt1_ds.launcher import launch
from gpt1_ds.training.finetuning import Finetuning
from tests.helpers import finetuning
from tests.helpers.foreign import make_checkpoint
from tools import small_tasks

SIZES = {"train": 100, "dev": 20, "half": 10, "test": 40}


@pytest.mark.parametrize(
    ("answer", "writes", "seconds"), [("all", False, 35.0), ("labelled", False, 15.0), ("all", True, 140.0)]
)
def test_how_long_results_take(answer: str, writes: bool, seconds: float) -> None:
    """They are of all splits, and of all examples."""
    splits = {name: SimpleNamespace(example_ids=range(count)) for name, count in SIZES.items()}
    settings = SimpleNamespace(answer=answer, decoded_examples=5)
    workload: Any = object.__new__(Finetuning)
    workload.task = SimpleNamespace(writes_text=writes)
    workload.scorer = SimpleNamespace(splits=splits, settings=settings, has_labels=lambda split: split != "test")
    assert workload.results_take(10.0) == seconds


def test_results_that_would_outlast_the_job_are_the_next_jobs(tiny_data: Path, tmp_path: Path) -> None:
    """The job was killed at its time limit while it scored, and no other followed. A job that begins with the results
    has no more time than the next one.
    """
    source = make_checkpoint(
        tmp_path / "source", tiny_data.parent / "tokenizer", ModelConfig(layers=2, width=32, heads=2, context=48)
    )
    words = [*small_tasks.make_task(tmp_path / "task", "choice"), f"checkpoint.init_from={source}"]
    words += [f"run.dir={tmp_path}", "train.epochs=1"]
    run_dir = finetuning.folder(words)
    assert launch.run(f"{__name__}:job", (words,), 2) == [75, 75]
    assert not run_dir.evaluation.exists()
    assert launch.run(f"{__name__}:job", (words,), 2) == [0, 0]
    ends = [line["reason"] for line in read_jsonl(run_dir.events) if line["event"] == "stopped"]
    assert ends == ["handover", "done"]
    assert run_dir.evaluation.is_file()


def job(words: list[str]) -> int:
    """One rank of a job whose time would not suffice for the results; its exit code."""
    from gpt1_ds.training.finetuning import finetune

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPT1_DS_DEADLINE", str(time.time() + 3600))
        patch.setattr(Finetuning, "results_take", lambda *_: 7200.0)
        return finetune(finetuning.configuration(words))
