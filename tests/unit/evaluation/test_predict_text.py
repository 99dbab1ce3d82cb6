"""Predictions of models that answer in text: the run's own, whatever is predicted together, and what an export is."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.cli import main
from gpt1_ds.interop import hf_export
from gpt1_ds.tracking.record import of_models
from tests.helpers.served import fields, fine_tune, labels, predictor_of, rows

T5 = ["model.kind=encoder_decoder", "model.norm=pre", "model.norm_kind=rms", "model.norm_eps=1e-6", "model.init=t5"]
T5 += ["model.positions=relative", "model.biases=false", "model.attention_scale=one", "model.activation=relu"]
T5 += ["model.logit_scale=inverse_root_width", "model.ffn_dropout=0.1"]
CASES = {"single": T5, "choice": ["model.norm=pre"]}
Run = Callable[[str], Path]


@pytest.fixture(scope="module")
def run(span_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("answers")

    @cache
    def tuned(shape: str) -> Path:
        words = ["task.form=text", "model.layers=1", "optimizer.lr=1e-2", "train.steps=24", *CASES[shape]]
        return fine_tune(shape, span_data.parent / "tokenizer", place / shape, *words)

    return tuned


@pytest.mark.parametrize("shape", CASES)
def test_predictions_are_the_runs_own_and_those_of_each_alone(shape: str, run: Run) -> None:
    predictor, reader = predictor_of(run(shape))
    examples = [reader.of_fields(fields(shape, row)) for row in rows(shape, 41)]
    together = predictor.scores(examples)
    alone = np.concatenate([predictor.scores([example]) for example in examples[:9]])
    np.testing.assert_allclose(together[:9], alone, rtol=0, atol=1e-4)
    found = [line.split("\t") for line in predictor.lines(examples, as_json=False)]
    assert [label for label, _ in found] == labels(run(shape))
    (line,) = predictor.lines(examples[:1], as_json=True)
    told = json.loads(line)
    assert list(told) == ["label", "probability", "scores", "text"]
    assert told["label"] == found[0][0]
    assert told["text"] == predictor.task.answers[predictor.task.labels.index(told["label"])]


def test_what_a_run_learns_and_says(run: Run) -> None:
    """The label shows in the words: it is learned, and written greedily."""
    entries = json.loads((run("single") / "eval.json").read_text())
    (dev,) = [entry["metrics"] for entry in entries if entry["split"] == "dev"]
    assert dev["accuracy"] > 0.6
    assert dev["exact_match"] > 0.5
    assert "test" not in {entry["split"] for entry in entries}, "it has no labels"
    assert len(labels(run("single"), "test")) == 9
    facts = manifest.read(find_checkpoint(run("single")))
    assert "head" not in facts
    assert facts["task"]["answers"] == facts["task"]["labels"] == ["no", "oui é", "perhaps not"]


def test_evaluate_says_the_same(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "--checkpoint", str(run("single")), "--out", str(tmp_path / "e.json"), "--nproc", "1"]
    assert main(words) == 0
    found = of_models(json.loads((tmp_path / "e.json").read_text()))
    assert found == json.loads((run("single") / "eval.json").read_text())
    capfd.readouterr()
    assert main([*words, "task.form=head"]) == 2
    assert "was fine-tuned with task.form=text; leave task.form out" in capfd.readouterr().err


def test_an_export_is_a_language_model(run: Run, tmp_path: Path) -> None:
    hf_export.export(find_checkpoint(run("single")), tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["architectures"] == ["T5ForConditionalGeneration"]
