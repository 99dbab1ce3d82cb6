"""A masked model with pairs, as a person trains and evaluates it: what is logged, kept, said and shown."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.launcher import launch
from gpt1_ds.training.state import TrainingState
from gpt1_ds.training.trackers import summary
from tools.families import FAMILIES
from tools.runs import configuration


@pytest.fixture(scope="module")
def run(sentence_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps, evaluated after the second."""
    folder = tmp_path_factory.mktemp("masked")
    arguments = [
        f"data.path={sentence_data}",
        f"run.dir={folder}",
        "run.name=r",
        "train.steps=2",
        *FAMILIES["bert"],
    ]
    assert launch.launch("gpt1_ds.training.pretraining:pretrain", (configuration(arguments),), 1) == 0
    return folder / "r"


def test_metrics_have_what_masked_text_has_besides(run: Path) -> None:
    *steps, evaluated = read_jsonl(run / "metrics.jsonl")
    for line in steps:
        assert line["predicted"] == pytest.approx(0.15 * 8 * 32, rel=0.3), "of 8 rows, some of them short"
        assert line["loss"] == pytest.approx(math.log(500) + math.log(2), abs=0.3), "of masks and pairs"
    assert evaluated["loss"] == pytest.approx(math.log(500), abs=0.2), "of masks alone"
    assert evaluated["perplexity"] == pytest.approx(math.exp(evaluated["loss"]))
    assert evaluated["pair_loss"] == pytest.approx(math.log(2), abs=0.1)
    assert 0 <= evaluated["masked_accuracy"] < 0.3
    assert 0 < evaluated["pair_accuracy"] < 1
    assert evaluated["bits_per_byte"] is None
    shown = summary(RunDir(run), TrainingState(lowest_validation_loss=9.0), "done", [])
    assert shown["final/held_out_masked_accuracy"] == evaluated["masked_accuracy"]
    assert shown["final/held_out_pair_loss"] == evaluated["pair_loss"]


def test_an_evaluation_says_how_much_masks_matter(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--nproc", "1", "--checkpoint", str(run)]) == 0
    (entry,) = json.loads((run / "eval.json").read_text())
    names = ["loss", "perplexity", "bits_per_byte", "masked_accuracy", "pair_loss", "pair_accuracy", "mask_deviation"]
    assert list(entry["metrics"]) == names
    assert 0 < entry["metrics"]["mask_deviation"] < 0.1
    assert main(["report", str(run)]) == 0
    capfd.readouterr()
    page = (run / "report.html").read_text()
    accuracy, deviation = entry["metrics"]["masked_accuracy"], entry["metrics"]["mask_deviation"]
    assert f"masked accuracy {accuracy:.4f}, pairs: loss" in page
    assert f"another draw of masks moves the loss by {deviation:.4f} (standard deviation)" in page
    assert "nats per predicted token, and per pair added to it" in page
    assert "bits per byte" not in page.partition("<svg")[0]
