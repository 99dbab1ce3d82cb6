"""Which vocabulary a run has whose shipped preset names that of the published model."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.cli import main
from gpt1_ds.config import ModelConfig, to_yaml
from gpt1_ds.config.layers import is_published
from gpt1_ds.training.claim import run_folder
from gpt1_ds.training.configuration import finetune_config, pretrain_config
from tests.helpers import finetuning
from tests.helpers.foreign import make_checkpoint
from tools import small_tasks

PRESETS = ["pretrain/gpt1_117m", "pretrain/bert_base", "pretrain/gpt2", "pretrain/t5_base", "model/lstm"]


@pytest.mark.parametrize("preset", PRESETS)
def test_it_is_that_of_its_tokenizer(preset: str, tiny_data: Path, in_folder: Path) -> None:
    arguments = ["data.path=nowhere"]
    published = pretrain_config([preset], arguments).model.vocab_size
    assert published is not None
    assert published > 30_000, "while there is no tokenizer"
    arguments = [f"data.path={tiny_data}"]
    assert pretrain_config([preset], arguments).model.vocab_size == 500
    assert pretrain_config([preset], [*arguments, "model.vocab_size=640"]).model.vocab_size == 640
    (in_folder / "mine.yaml").write_text("model: {vocab_size: 700}")
    assert pretrain_config([preset, "mine.yaml"], arguments).model.vocab_size == 700


def test_the_plan_and_the_dry_run_count_its_rows(
    tiny_data: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-c", "pretrain/gpt1_117m", f"data.path={tiny_data}"]
    for command in (["plan", *arguments], ["pretrain", *arguments, "--dry-run"]):
        assert main(command) == 0
        assert "vocabulary 500: 85,831,680 parameters" in capsys.readouterr().out
    assert main(["plan", "-c", "pretrain/gpt1_117m"]) == 0
    assert "vocabulary 40482: 116,537,856 parameters" in capsys.readouterr().out


def test_a_run_that_has_checkpoints_keeps_its_rows(tiny_data: Path, in_folder: Path) -> None:
    """One of an earlier version, which had the preset's."""
    arguments = [f"data.path={tiny_data}", "run.name=r"]
    before = pretrain_config(["pretrain/gpt1_117m"], [*arguments, "model.vocab_size=40482"])
    run_dir = run_folder(before)
    run_dir.checkpoint(4).mkdir(parents=True)
    run_dir.config.write_text(to_yaml(before))
    assert pretrain_config(["pretrain/gpt1_117m"], arguments).model.vocab_size == 40482
    assert pretrain_config(["pretrain/gpt1_117m"], [*arguments, "checkpoint.resume=never"]).model.vocab_size == 500


def test_a_run_that_continues_weights_has_theirs(tiny_data: Path, in_folder: Path) -> None:
    tokenizer = tiny_data.parent / "tokenizer"
    source = make_checkpoint(Path("source"), tokenizer, ModelConfig(layers=2, width=32, heads=2, context=48))
    arguments = [f"data.path={tiny_data}", f"checkpoint.init_from={source}"]
    assert pretrain_config(["model/gpt1"], arguments).model.vocab_size == 500
    task = [*finetuning.TRAINING, *small_tasks.make_task(Path("task"), "single", train=8, dev=4)]
    assert finetune_config([], [*task, arguments[1]]).model.vocab_size == 500
    assert finetune_config(["model/gpt1"], [*task, f"task.tokenizer={tokenizer}"]).model.vocab_size is None


def test_what_is_published(in_folder: Path) -> None:
    (in_folder / "mine.yaml").write_text("model: {layers: 3}")
    key = ("model", "vocab_size")
    assert is_published(["model/gpt1", "mine.yaml"], ["model.width=32"], *key)
    assert not is_published(["model/gpt1"], ["model.vocab_size=null"], *key)
    assert not is_published(["mine.yaml"], [], *key)


def test_a_plan_is_of_the_model_that_a_checkpoint_gives(
    tiny_data: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ModelConfig(layers=3, width=32, heads=2, context=48)
    begins = f"checkpoint.init_from={make_checkpoint(Path('source'), tiny_data.parent / 'tokenizer', model)}"
    task = [*finetuning.TRAINING, *small_tasks.make_task(Path("task"), "single", train=16, dev=4), "train.epochs=2"]
    said = []
    for command in (["plan"], ["finetune", "--dry-run"]):
        assert main([*command, *task, begins]) == 0
        said.append([line for line in capsys.readouterr().out.splitlines() if line.startswith(("model:", "batch:"))])
    assert said[0][0] == said[1][0]
    assert "3 layers x width 32" in said[0][0]
    assert "; 4 steps" in said[0][1]
    assert main(["plan", begins, f"data.path={tiny_data}", "train.steps=4"]) == 0
    assert "model: 3 layers x width 32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["task.path=nowhere"], "checkpoint.init_from is empty"), (["checkpoint.init_from=nowhere"], "nowhere: ")],
)
def test_a_plan_of_a_task_needs_what_its_run_needs(
    arguments: list[str], why: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "-c", "finetune/cola", *arguments]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
