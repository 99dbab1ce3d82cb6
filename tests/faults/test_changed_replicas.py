"""A parameter that changes on one of the ranks that hold it ends the run, named, and is never published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common.errors import TrainingError
from gpt1_ds.launcher import launch
from tools import runs

NORM, TIED = "blocks.0.attention_norm.weight", "tokens.weight"
BF16 = "train.precision=bf16"
# name: (arguments, the parameter, whether its master changes; found by comparing every 3 steps, or before a save)
CASES: dict[str, tuple[list[str], str, bool, int]] = {
    "tp2": (["parallel.tensor=2"], NORM, True, 6),
    "tp2-bf16": (["parallel.tensor=2", BF16], NORM, True, 10),
    "dp2-zero0": (["parallel.zero=0"], NORM, False, 10),
    "dp2-zero1-bf16": ([BF16], NORM, False, 6),
    "dp2-zero3": (["parallel.zero=3"], NORM, False, 6),
    "pp2": (["parallel.pipeline=2"], TIED, True, 10),
    "pp2-bf16": (["parallel.pipeline=2", BF16], TIED, True, 6),
}


@pytest.mark.parametrize("case", CASES)
def test_it_ends_the_run_and_is_not_published(case: str, tiny_data: Path, tmp_path: Path) -> None:
    layout, name, master, step = CASES[case]
    every = 3 if step == 6 else 0
    overrides = [
        *layout,
        "train.steps=10",
        f"data.path={tiny_data}",
        f"run.dir={tmp_path}",
        f"guard.compare_every={every}",
    ]
    kind = "master weight" if master else "weight"
    arguments = (runs.configuration(overrides), name, master, step)
    with pytest.raises(TrainingError, match=rf"^step {step}: the {kind} {name} is not the same on rank 0 and rank 1; "):
        launch.launch("tests.faults.test_changed_replicas:pretrain_with_a_flip", arguments, 2)
    run_dir = runs.folder(overrides)
    (event,) = runs.events(run_dir, "replicas differ")
    assert (event["step"], event["parameter"], event["what"], event["ranks"]) == (step, name, kind, [[0], [1]])
    assert [folder.name for folder in steps_in(run_dir.checkpoints)] == ["step-00000005"]
    assert runs.pretrain(overrides, 2) == 0
    assert runs.events(run_dir, "started")[-1]["step"] == 5
    assert steps_in(run_dir.checkpoints)[-1].name == "step-00000010"


def pretrain_with_a_flip(config: Any, name: str, master: bool, step: int) -> int:
    """Runs on every rank: after the update of `step`, a bit of the parameter changes on rank 1."""
    import torch

    from gpt1_ds.engine import master_weights
    from gpt1_ds.training.pretraining import pretrain
    from gpt1_ds.training.trainer import Trainer

    finish_step = Trainer.finish_step

    def flipped(run: Trainer, number: int, *others: Any) -> None:
        if number == step and run.engine.groups.rank == 1:
            held = master_weights.fragments(run.engine) if master else master_weights.weights(run.engine)
            next(fragment.master for fragment in held if fragment.info.name == name).view(torch.int16)[3] ^= 1
        finish_step(run, number, *others)

    Trainer.finish_step = flipped  # type: ignore[method-assign]
    try:
        return pretrain(config)
    finally:
        Trainer.finish_step = finish_step  # type: ignore[method-assign]


def test_what_reads_back_otherwise_is_not_published(tiny_data: Path, tmp_path: Path) -> None:
    """With checkpoint.keep=1, too, the good one stays until there is a newer good one."""
    overrides = ["train.steps=10", f"data.path={tiny_data}", f"run.dir={tmp_path}", "checkpoint.keep=1"]
    with pytest.raises(TrainingError, match="its last state could not be saved"):
        launch.launch("tests.faults.test_changed_replicas:pretrain_on_a_bad_disk", (runs.configuration(overrides),), 2)
    run_dir = runs.folder(overrides)
    (failed,) = runs.events(run_dir, "save failed")
    assert failed["step"] == 10
    assert "rank-00001.safetensors: reads back with other bytes than were written" in failed["error"]
    assert [folder.name for folder in steps_in(run_dir.checkpoints)] == ["step-00000005"]
    assert runs.pretrain(overrides, 2) == 0
    assert runs.events(run_dir, "started")[-1]["step"] == 5
    assert [folder.name for folder in steps_in(run_dir.checkpoints)] == ["step-00000010"]


def pretrain_on_a_bad_disk(config: Any) -> int:
    """Runs on every rank: a byte of what rank 1 writes at step 10 is another one on the disk."""
    from gpt1_ds.checkpoint import shard
    from gpt1_ds.training.pretraining import pretrain

    write = shard.write_tensors

    def written_badly(path: Path, *others: Any) -> tuple[int, str]:
        result = write(path, *others)
        if "step-00000010" in str(path) and "rank-00001" in path.name:
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        return result

    shard.write_tensors = written_badly
    try:
        return pretrain(config)
    finally:
        shard.write_tensors = write
