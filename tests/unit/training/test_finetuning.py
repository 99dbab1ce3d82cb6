"""How a fine-tuning run ends in a job."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.errors import CheckpointError
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


@pytest.fixture
def arguments(tiny_data: Path, tmp_path: Path) -> list[str]:
    """What a small fine-tuning run is told."""
    source = make_checkpoint(
        tmp_path / "source", tiny_data.parent / "tokenizer", ModelConfig(layers=2, width=32, heads=2, context=48)
    )
    task = small_tasks.make_task(tmp_path / "task", "choice")
    return [*task, f"checkpoint.init_from={source}", f"run.dir={tmp_path}"]


def flip_a_bit(folder: Path) -> tuple[Path, bytes]:
    """Damages a weight of a checkpoint. Returns the file, and what was in it."""
    shard = next(folder.glob("state/rank-*.safetensors"))
    content = shard.read_bytes()
    header = int.from_bytes(content[:8], "little")
    begins = {name: tensor["data_offsets"][0] for name, tensor in json.loads(content[8 : 8 + header]).items()}
    wrong = 8 + header + next(begin for name, begin in begins.items() if "master" in name)
    shard.write_bytes(content[:wrong] + bytes([content[wrong] ^ 1]) + content[wrong + 1 :])
    return shard, content


def test_a_best_checkpoint_with_a_wrong_bit_tells_how_to_score_the_last_one(arguments: list[str]) -> None:
    arguments = [*arguments, "train.epochs=4"]
    assert finetuning.finetune(arguments) == 0
    run_dir = finetuning.folder(arguments)
    best, last = finetuning.best(run_dir), run_dir.checkpoints / run_dir.latest.read_text().strip()
    flip_a_bit(best)
    run_dir.done.unlink()
    with pytest.raises(CheckpointError) as caught:
        finetuning.finetune(arguments)
    (line,) = caught.value.problems
    assert line.startswith(f"{best}: ")
    assert line.endswith(
        f": the best checkpoint is damaged; put it back and run again to score it, or score the last "
        f"one: gpt1-ds evaluate {last}"
    )
    assert main(["evaluate", str(last)]) == 0


def test_a_best_checkpoint_with_a_wrong_bit_is_mended_from_the_store(arguments: list[str], tmp_path: Path) -> None:
    """The run ended with a line that told no way out, at every start, beside a whole copy."""
    arguments = [*arguments, "train.epochs=4", f"checkpoint.mirror=file://{tmp_path}/store"]
    assert finetuning.finetune(arguments) == 0
    run_dir = finetuning.folder(arguments)
    best, scores = finetuning.best(run_dir), run_dir.evaluation.read_text()
    assert best.name not in run_dir.latest.read_text(), "a later epoch is worse: else this test says nothing"
    shard, content = flip_a_bit(best)
    run_dir.done.unlink()
    run_dir.evaluation.unlink()
    assert finetuning.finetune(arguments) == 0
    assert shard.read_bytes() == content
    assert run_dir.evaluation.read_text() == scores


def test_results_that_would_outlast_the_job_are_the_next_jobs(arguments: list[str]) -> None:
    """The job was killed at its time limit while it scored, and no other followed. A job that begins with the results
    has no more time than the next one.
    """
    arguments = [*arguments, "train.epochs=1"]
    run_dir = finetuning.folder(arguments)
    assert launch.run(f"{__name__}:job", (arguments,), 2) == [75, 75]
    assert not run_dir.evaluation.exists()
    assert launch.run(f"{__name__}:job", (arguments,), 2) == [0, 0]
    ends = [line["reason"] for line in read_jsonl(run_dir.events) if line["event"] == "stopped"]
    assert ends == ["handover", "done"]
    assert run_dir.evaluation.is_file()


def job(arguments: list[str]) -> int:
    """One rank of a job whose time would not suffice for the results; its exit code."""
    from gpt1_ds.training.finetuning import finetune

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPT1_DS_DEADLINE", str(time.time() + 3600))
        patch.setattr(Finetuning, "results_take", lambda *_: 7200.0)
        return finetune(finetuning.configuration(arguments))
