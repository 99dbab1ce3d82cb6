"""The paper's preset on data built with the paper's tokenizer, on a model narrowed for speed alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import load
from tests.helpers.shared_data import shared_data
from tools import runs

NARROW = [
    *("model.layers=1", "model.width=24", "model.heads=2", "model.context=32", "train.epochs=null", "train.steps=2"),
    *("train.global_batch=4", "train.micro_batch=2", "schedule.warmup_steps=1", "train.eval_every=0"),
    *("train.eval_batches=1", "checkpoint.every=0", "run.name=r"),
]


def test_it_trains(in_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bpe = shared_data("gpt1_bpe")
    files = ["--vocab", str(bpe / "encoder_bpe_40000.json"), "--merges", str(bpe / "vocab_40000.bpe")]
    assert main(["tokenizer", "import", "--openai-gpt", *files, "--out", "tok"]) == 0
    Path("text.txt").write_text("It was a dark and stormy night; the rain fell in torrents.\n" * 200)
    build = ["data", "build", "--input", "text.txt", "--tokenizer", "tok", "--out", "data/books"]
    assert main([*build, "--validation", "0.2", "--workers", "1"]) == 0
    pretrain = ["pretrain", "-c", "pretrain/gpt1_117m"]
    assert main([*pretrain, "--dry-run"]) == 0, "at full size"
    assert "vocabulary 40482: 116,537,856 parameters" in capfd.readouterr().out
    assert main([*pretrain, *NARROW, "--nproc", "1"]) == 0
    assert runs.last_step(RunDir(Path("runs/r"))) == 2


@pytest.mark.parametrize("preset", ["model/gpt1", "model/lstm", "pretrain/gpt1_117m", "pretrain/gpt1_345m"])
def test_no_preset_has_fewer_rows_than_its_tokenizer(preset: str) -> None:
    assert (load([preset]).model.vocab_size or 40482) >= 40482
