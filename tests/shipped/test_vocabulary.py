"""A model with more token rows than its tokenizer has pieces, and a run that continues it: one source of the shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpt1_ds.common.rundir import read_jsonl
from tests.helpers import finetuning
from tests.helpers.program import assert_refused
from tools import small_tasks
from tools.runs import TINY


@pytest.mark.slow
def test_every_command_takes_the_checkpoint_s_vocabulary(gpt1, tiny_data: Path) -> None:  # type: ignore[no-untyped-def]
    """A tokenizer of 500 pieces under 640 rows: training, evaluation, text, export and fine-tuning."""
    arguments = [*TINY, f"data.path={tiny_data}", "train.eval_batches=0"]
    assert gpt1("pretrain", *arguments, "model.vocab_size=640", "train.steps=1", "--nproc", "1").code == 0
    trained = [line for line in read_jsonl(Path("runs/run/metrics.jsonl")) if line["kind"] == "eval"][-1]
    done = gpt1("evaluate", "runs/run", "--nproc", "1")
    assert done.code == 0, done.err
    (entry,) = json.loads(Path("runs/run/eval.json").read_text())
    assert entry["metrics"]["loss"] == trained["loss"]
    assert gpt1("sample", "runs/run", "--prompt", "The", "--tokens", "2").code == 0
    done = gpt1("checkpoint", "export", "runs/run", "--to", "hf", "--out", "exported")
    assert done.code == 0, done.err
    task = small_tasks.make_task(Path("task"), "single", train=8, dev=4)
    tuning = [*finetuning.TRAINING, *task, "train.steps=1", "run.name=tuned"]
    assert gpt1("finetune", *tuning, "checkpoint.init_from=runs/run", "--nproc", "1").code == 0
    assert gpt1("evaluate", "runs/tuned", "--nproc", "1").code == 0
    assert gpt1("predict", "runs/tuned", "a name").code == 0

    continued = ["run.name=next", "checkpoint.init_from=runs/run", f"data.path={tiny_data}", "train.steps=1"]
    batches = ["train.global_batch=8", "train.micro_batch=2", "train.eval_batches=0"]
    assert gpt1("pretrain", *continued, *batches, "--nproc", "1").code == 0, "its shape is that of the checkpoint"
    recorded = Path("runs/next/config.yaml").read_text()
    assert "vocab_size: 640" in recorded
    assert "width: 32" in recorded
    first = next(read_jsonl(Path("runs/next/metrics.jsonl")))
    assert first["loss"] != next(read_jsonl(Path("runs/run/metrics.jsonl")))["loss"]
    assert_refused(
        gpt1("pretrain", *continued, "run.name=other", "model.vocab_size=700"),
        "has a model of another shape than model.vocab_size=700 (there 640); leave these keys out",
    )
