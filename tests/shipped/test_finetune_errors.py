"""What people get wrong with tasks: one line that names the key or file and the way out, exit code 2, and no rank was
started for it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.tokenizers.base import copy_tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.launcher import launch
from tests.helpers import finetuning
from tests.helpers.foreign import make_checkpoint
from tests.helpers.program import assert_refused
from tools import small_tasks
from tools.cluster import Result

MODEL = ModelConfig(layers=2, width=32, heads=2, context=48)


@pytest.fixture(scope="module")
def source(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("source") / "source", tiny_data.parent / "tokenizer", MODEL)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    place = tmp_path_factory.mktemp("tasks")
    return {shape: small_tasks.make_task(place / shape, shape, train=24, dev=6) for shape in small_tasks.COLUMNS}


@pytest.fixture
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> None:
        raise AssertionError("ranks were started")

    monkeypatch.setattr(launch, "launch", run)


def finetune(gpt1, *arguments: str) -> Result:  # type: ignore[no-untyped-def]
    return gpt1("finetune", *finetuning.TRAINING, *arguments, "--nproc", "1")  # type: ignore[no-any-return]


@pytest.mark.usefixtures("no_ranks")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["task.path=nowhere"], ["nowhere: no such folder; set task.path"]),
        (["task.train=[none.jsonl]"], ["none.jsonl: no such file"]),
        (["task.columns.text=z"], ["train.jsonl: has no column z; its columns are a, b, x; set task.columns.text"]),
        (["checkpoint.init_from=nowhere"], ["nowhere: no such folder; name a run folder, like runs/NAME"]),
        (["checkpoint.init_from=null"], ["checkpoint.init_from is empty", "task.tokenizer"]),
        (["task.tokenizer=somewhere"], ["task.tokenizer", "keep one of the two"]),
        (["model.width=64"], ["model.width=64", "32", "leave it out"]),
        (["model.heads=4"], ["model.heads=4", "2", "leave it out"]),
        (["model.context=64"], ["model.context=64", "48"]),
        (["model.layers=3"], ["model.layers=3", "2", "task.transfer_layers"]),
        (["model.layers=3", "task.transfer_layers=3"], ["task.transfer_layers=3", "use 2 or less"]),
        (["task.transfer_layers=3"], ["task.transfer_layers=3", "use 2 or less"]),
        (["train.global_batch=32"], ["24 training examples are fewer than one batch; use train.global_batch=24"]),
        (["train.tokens=1M"], ["train.tokens=1000000 is for pre-training; give train.epochs or train.steps"]),
        (["task.max_length=49"], ["task.max_length=49 is more than the model's context of 48; use 48 or less"]),
        (["task.columns.choices=[c]"], ["task.columns.choices", "choice needs it"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_words(gpt1, arguments: list[str], says: list[str], tasks, source: Path) -> None:  # type: ignore[no-untyped-def]
    result = finetune(gpt1, *tasks["single"], f"checkpoint.init_from={source}", *arguments)
    assert_refused(result, *says)
    assert not Path("runs").exists(), "nothing was written"


@pytest.mark.usefixtures("no_ranks")
def test_no_task(gpt1, source: Path) -> None:  # type: ignore[no-untyped-def]
    assert_refused(finetune(gpt1, f"checkpoint.init_from={source}"), "task: fine-tuning needs one", "-c finetune/cola")


@pytest.mark.usefixtures("no_ranks")
@pytest.mark.parametrize(
    ("shape", "split", "content", "says"),
    [
        ("single", "train", "", ["train.jsonl: is empty"]),
        ("single", "dev", '{"a": "x", "x": "maybe"}\n', ["dev: label maybe never occurs in train"]),
        ("choice", "dev", '{"a": "x", "x": 0, "c": ["a", "b"]}\n', ["dev.jsonl line 1: 2 choices where 3", "bad_rows"]),
        ("regression", "dev", '{"a": "x", "b": "y", "x": 7}\n', ["dev.jsonl line 1: x=7 is no number from 0 to 5"]),
    ],
)
def test_wrong_files(  # type: ignore[no-untyped-def]
    gpt1, shape: str, split: str, content: str, says: list[str], tasks, source: Path, tmp_path: Path
) -> None:
    arguments = small_tasks.make_task(tmp_path / "task", shape, train=24, dev=6)
    (tmp_path / "task" / f"{split}.jsonl").write_text(content)
    result = finetune(gpt1, *arguments, f"checkpoint.init_from={source}")
    assert_refused(result, *says, lines=2 if "bad_rows" in says or shape == "regression" else 1)


@pytest.mark.parametrize("layers", ["0", "2"])
def test_a_deeper_model_than_the_checkpoint(gpt1, layers: str, tasks, source: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = [*tasks["single"], f"checkpoint.init_from={source}", "model.layers=3", f"task.transfer_layers={layers}"]
    assert finetune(gpt1, *arguments, "train.steps=1").code == 0


def test_another_checkpoint_in_the_same_folder(gpt1, tasks, source: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The run continues from its own; another task in its place is another run."""
    arguments = [*tasks["single"], f"checkpoint.init_from={source}", "train.steps=2", "checkpoint.every=1"]
    assert finetune(gpt1, *arguments).code == 0
    result = finetune(gpt1, *tasks["pair"], *arguments[-3:])
    assert_refused(result, "task.path was", "task.columns.text2 was '' and is now 'b'", lines=2)
    damaged = tmp_path / "damaged"
    shutil.copytree(source, damaged)
    (damaged / "config.yaml").write_text((damaged / "config.yaml").read_text() + "\n")
    result = finetune(gpt1, *tasks["single"], f"checkpoint.init_from={damaged}", "run.name=second")
    assert_refused(result, "config.yaml: damaged")


def test_a_run_that_was_fetched_needs_no_source(gpt1, tasks, source: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Its checkpoints have its tokenizer, its config.yaml the model."""
    shutil.copytree(source, "source")
    arguments = [*tasks["single"], "checkpoint.init_from=source", "checkpoint.every=1"]
    store = f"file://{tmp_path}/store"
    assert finetune(gpt1, *arguments, "train.steps=2", f"checkpoint.mirror={store}").code == 0
    shutil.rmtree("source")
    shutil.rmtree("runs/run")
    assert gpt1("checkpoint", "fetch", f"{store}/run", "--out", "runs/run").code == 0
    assert finetune(gpt1, *arguments, "train.steps=3").code == 0
    assert steps_in(RunDir(Path("runs/run")).checkpoints)[-1].name == "step-00000003"
    for folder in steps_in(RunDir(Path("runs/run")).checkpoints):
        shutil.rmtree(folder)
    assert finetune(gpt1, *arguments, "train.steps=4", f"checkpoint.mirror={store}").code == 0
    assert "training 4 steps from step 2" in RunDir(Path("runs/run")).rank_log(0).read_text(), "with its own tokenizer"


def test_a_beginning_from_another_tokenizer(gpt1, tasks, source: Path, tiny_data: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Before the first checkpoint another one may still be chosen to start from."""
    train_tokenizer([tiny_data.parent / "text"], tmp_path / "other", 400)
    copy_tokenizer(tmp_path / "other", Path("tokenizer"))
    RunDir(Path("runs/run")).create()
    Path("tokenizer").rename("runs/run/tokenizer")
    assert finetune(gpt1, *tasks["single"], f"checkpoint.init_from={source}", "train.steps=1").code == 0
    kept = load_tokenizer(Path("runs/run/tokenizer"))
    assert kept.fingerprint == load_tokenizer(source / "tokenizer").fingerprint


def test_long_examples_are_cut_and_counted(gpt1, tasks, source: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = [*tasks["pair"], f"checkpoint.init_from={source}", "task.max_length=16", "train.steps=1"]
    result = finetune(gpt1, *arguments)
    assert result.code == 0
    assert "22 are longer than 16 tokens and cut" in RunDir(Path("runs/run")).rank_log(0).read_text()


@pytest.mark.parametrize(
    ("shape", "metric", "line"),
    [("single", "matthews", "matthews is 0.0: every label"), ("regression", "pearson", "pearson is null: every label")],
)
def test_a_dev_set_of_one_class(gpt1, shape: str, metric: str, line: str, source: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = small_tasks.make_task(tmp_path / "task", shape, train=24, dev=6)
    rows = [json.loads(row) for row in (tmp_path / "task" / "dev.jsonl").read_text().splitlines()]
    same = "".join(json.dumps({**row, "x": rows[0]["x"]}) + "\n" for row in rows)
    (tmp_path / "task" / "dev.jsonl").write_text(same)
    result = finetune(gpt1, *arguments, f"checkpoint.init_from={source}", f"task.metric={metric}", "train.epochs=2")
    assert result.code == 0, result.err
    run_dir = RunDir(Path("runs/run"))
    assert line in run_dir.rank_log(0).read_text()
    best = finetuning.best(run_dir)
    assert best == run_dir.checkpoint(3), "of equals the first"
    value = {"matthews": 0.0, "pearson": None}[metric]
    assert json.loads(run_dir.evaluation.read_text())[0]["metrics"][metric] == value
    json.loads((best / manifest.NAME).read_text(), parse_constant=pytest.fail)


def test_a_configuration_is_printed_without_a_checkpoint(gpt1) -> None:  # type: ignore[no-untyped-def]
    for arguments, told in (
        ([], "checkpoint.init_from is empty"),
        (["checkpoint.init_from=nope"], "nope: no such folder"),
    ):
        found = gpt1("finetune", "-c", "finetune/cola", "train.epochs=7", *arguments, "--print-config")
        assert (found.code, "epochs: 7.0" in found.out) == (0, True)
        assert told in found.err
        assert "the section model is shown without its checkpoint's" in found.err
    assert_refused(gpt1("finetune", "-c", "finetune/cola", "train.epoch=7", "--print-config"), "no key 'epoch'")
