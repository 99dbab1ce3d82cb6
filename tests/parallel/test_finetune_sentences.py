"""Sentence vectors: every layout has the numbers of one process (dropout on), for each loss and pooling."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import load_carried
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.evaluation.predict import Predictor
from gpt1_ds.launcher import launch
from gpt1_ds.tracking.record import of_models
from tests.helpers import finetuning
from tests.helpers.finetuning import assert_alike
from tests.helpers.foreign import ENCODER, make_checkpoint
from tools import small_tasks

STEPS = 5
LAYOUTS = {
    "one": (1, []),
    "tp2-sequence": (2, ["parallel.tensor=2", "parallel.sequence=true"]),
    "pp2": (2, ["parallel.pipeline=2"]),
    "zero3": (2, ["parallel.zero=3", "train.micro_batch=4"]),
    "tp2-pp2": (4, ["parallel.tensor=2", "parallel.pipeline=2", "train.recompute=block"]),
}
CASES = [
    ("nli", "mean", "tp2-sequence"),
    ("nli", "mean", "pp2"),
    ("triplet", "max", "tp2-sequence"),
    ("triplet", "max", "tp2-pp2"),
    ("cosine", "cls", "tp2-sequence"),
    ("ranking", "mean", "zero3"),
]
Run = Callable[[str, str, str], Path]


@pytest.fixture(scope="module")
def run(sentence_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("runs")
    source = make_checkpoint(place / "source", sentence_data.parent / "tokenizer", ENCODER)

    @cache
    def finetuned(loss: str, pooling: str, layout: str) -> Path:
        ranks, cut = LAYOUTS[layout]
        overrides = small_tasks.make_task(place / loss, f"sentences-{loss}")
        overrides += [f"checkpoint.init_from={source}", f"task.pooling={pooling}", "task.group=2", *cut]
        overrides += [f"run.dir={place}", f"run.name={loss}-{layout}", f"train.steps={STEPS}"]
        assert finetuning.finetune(overrides, ranks) == 0
        return place / f"{loss}-{layout}"

    return finetuned


@pytest.mark.parametrize(("loss", "pooling", "layout"), CASES)
def test_every_layout_equals_one_process(loss: str, pooling: str, layout: str, run: Run) -> None:
    one, other = run(loss, pooling, "one"), run(loss, pooling, layout)
    assert_alike(one, other, STEPS, 1e-3)  # of a rank correlation: two cosines may change places


def test_any_rank_count_scores_the_best_checkpoint_alike(run: Run) -> None:
    """With the head on its engine, and with whole models that share the texts."""
    folder = run("nli", "mean", "one")
    checkpoint = finetuning.best(finetuning.RunDir(folder))
    (trained,) = (entry for entry in json.loads((folder / "eval.json").read_text()))
    assert (trained["task"], trained["split"]) == ("sts", "dev")
    own, pairs = folder / "own.json", folder / "pairs.json"
    config = load_carried(checkpoint / "config.yaml", [], [])
    assert launch.launch("gpt1_ds.evaluation.evaluate:evaluate_task", (config, [checkpoint], own), 1) == 0
    arguments = (config, [checkpoint], pairs, config.task.sts, None)  # type: ignore[union-attr]
    assert launch.launch("gpt1_ds.evaluation.embed:evaluate_sts", arguments, 2) == 0
    for file in (own, pairs):
        (entry,) = of_models(json.loads(file.read_text()))
        assert (entry["task"], entry["split"], entry["step"]) == ("sts", "dev", trained["step"])
        for metric in ("spearman", "pearson"):
            assert entry["metrics"][metric] == pytest.approx(trained["metrics"][metric], abs=1e-3)
    arguments = (config, [checkpoint], pairs, config.task.sts, "words")  # type: ignore[union-attr]
    assert launch.launch("gpt1_ds.evaluation.embed:evaluate_sts", arguments, 1) == 0
    entries = json.loads(pairs.read_text())
    assert [entry["task"] for entry in entries] == ["sts", "sts-words"]
    entries[1]["metrics"]["spearman"] = 2.0
    pairs.write_text(json.dumps(entries))
    for missing, kept in ((True, 2.0), (False, None)):
        arguments = (config, [checkpoint], pairs, config.task.sts, "words", missing)  # type: ignore[union-attr]
        assert launch.launch("gpt1_ds.evaluation.embed:evaluate_sts", arguments, 1) == 0
        assert (json.loads(pairs.read_text())[1]["metrics"]["spearman"] == 2.0) == (kept == 2.0)
    entries = json.loads(own.read_text())
    entries[0]["metrics"]["spearman"] = 2.0
    own.write_text(json.dumps(entries))
    bare = folder / "bare"  # without its weights: what has its scores is not loaded
    shutil.copytree(checkpoint, bare, ignore=shutil.ignore_patterns("state"))
    assert launch.launch("gpt1_ds.evaluation.evaluate:evaluate_task", (config, [bare], own, True), 1) == 0
    assert of_models(json.loads(own.read_text()))[0]["metrics"]["spearman"] == 2.0, "what is there is left as it is"


def test_lines_are_not_predicted(run: Run) -> None:
    with pytest.raises(CheckpointError, match=r"makes sentence vectors, no classes; use gpt1-ds embed or search$"):
        Predictor(load_checkpoint(run("nli", "mean", "one")))


def test_what_the_checkpoint_says(run: Run) -> None:
    facts = manifest.read(find_checkpoint(run("triplet", "max", "one")))
    assert {"kind": "max", "loss": "triplet", "sequences": 3, "lm_coefficient": 0.0}.items() <= facts["head"].items()
    assert {"kind": "sentences", "layout": "sentences", "symbols": "separator"}.items() <= facts["task"].items()
    assert not any(name.startswith("head.") for name in facts["parameters"])
    facts = manifest.read(find_checkpoint(run("nli", "mean", "one")))
    assert "head.weight" in facts["parameters"]
