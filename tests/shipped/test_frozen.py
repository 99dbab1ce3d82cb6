"""Frozen features: a linear model of what a checkpoint's vectors hold, alike on any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.evaluation.embed import Embedder
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.launcher import launch
from gpt1_ds.training.configuration import finetune_config
from gpt1_ds.training.frozen import FrozenFeatures
from tests.helpers.foreign import SMALL, make_checkpoint
from tests.helpers.program import assert_refused
from tools.cluster import Result

PAIRS = [(f"the {a} dog", f"a {b} cat", a == b) for a in ("red", "big", "old", "sad") for b in ("red", "big", "old")]


@pytest.fixture
def folder(tiny_data: Path, tmp_path: Path) -> Path:
    make_checkpoint(tmp_path / "model", tiny_data.parent / "tokenizer", SMALL)
    lines = ["text,other,label", *(f"{a},{b},{'same' if same else 'other'}" for a, b, same in PAIRS * 2)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def arguments(folder: Path, name: str) -> list[str]:
    return [
        *(f"checkpoint.init_from={folder}/model", f"task.path={folder}", "task.columns.text2=other"),
        *(f"run.dir={folder}/runs", f"run.name={name}", "task.form=frozen", "task.answer=labelled"),
    ]


def test_one_rank_and_two_say_the_same(folder: Path) -> None:
    for name, ranks in (("one", 1), ("two", 2)):
        config = finetune_config(["finetune/table"], arguments(folder, name))
        assert launch.start("gpt1_ds.training.finetuning:finetune", (config,), ranks) == 0
    told = [(folder / "runs" / name / "eval.json").read_text() for name in ("one", "two")]
    assert told[0] == told[1]
    (entry,) = json.loads(told[0])
    assert (entry["split"], entry["step"]) == ("dev", 0)
    assert entry["metrics"]["accuracy"] == 1.0, "the same examples as in train, with a model of random weights"
    assert (folder / "runs/one/DONE").is_file()
    assert len((folder / "runs/one/predictions/table-dev.tsv").read_text().splitlines()) == 1 + 2 * len(PAIRS)


def test_what_was_held_out_is_said(folder: Path) -> None:
    (folder / "dev.csv").unlink()
    config = finetune_config(["finetune/table"], [*arguments(folder, "held"), "task.dev_fraction=0.3"])
    assert launch.start("gpt1_ds.training.finetuning:finetune", (config,), 1) == 0
    assert "of train are held out as dev" in (folder / "runs/held/logs/rank-0.log").read_text()


def test_features_are_those_of_a_plain_model(folder: Path) -> None:
    embedder = Embedder(load_checkpoint(folder / "model"))
    texts = sorted({text for a, b, _ in PAIRS for text in (a, b)})
    vectors = dict(zip(texts, embedder.vectors(texts), strict=True))
    features = FrozenFeatures(vectors, [(a, b) for a, b, _ in PAIRS])
    table = features([(a, b) for a, b, _ in PAIRS])
    u, v = (np.stack([vectors[pair[side]] for pair in PAIRS]) for side in (0, 1))
    plain = np.concatenate([u, v, np.abs(u - v), u * v], axis=1)
    np.testing.assert_allclose(table, (plain - plain.mean(0)) / np.maximum(plain.std(0), 1e-6), atol=1e-5)
    labels = [same for *_, same in PAIRS]
    assert LogisticRegression(max_iter=1000).fit(table, labels).score(table, labels) == 1.0


def test_what_cannot_be_frozen(folder: Path, tiny_data: Path) -> None:
    with pytest.raises(ConfigError, match=r"task.form=frozen: checkpoint.init_from is empty"):
        finetune_config(
            ["finetune/table"], [*arguments(folder, "x")[1:], f"task.tokenizer={tiny_data.parent}/tokenizer"]
        )
    make_checkpoint(folder / "prefix", tiny_data.parent / "tokenizer", replace(SMALL, mask="prefix"))
    with pytest.raises(ConfigError, match=r"task.form=frozen reads states of a causal or bidirectional model"):
        finetune_config(["finetune/table"], [*arguments(folder, "x"), f"checkpoint.init_from={folder}/prefix"])


def test_a_folder_of_another_run_is_kept(folder: Path, gpt1: Callable[..., Result]) -> None:
    (folder / "runs/kept/checkpoints/step-00000001").mkdir(parents=True)
    told = gpt1("finetune", "-c", "finetune/table", *arguments(folder, "kept"), "--nproc", "1")
    assert_refused(told, "holds the checkpoints of another run")
