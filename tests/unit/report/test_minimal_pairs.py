"""BLiMP's phenomena of a run on its page, beside its control, chance and printed models."""

import json
from pathlib import Path

import pytest

from gpt1_ds.report.minimal_pairs import BABYLM, BLIMP, PHENOMENA, lines
from gpt1_ds.report.page import write_report
from gpt1_ds.report.runs import read
from gpt1_ds.tasks.blimp import read_pairs
from tests.helpers.shared_data import shared_data
from tests.unit.report.test_page import run as plain_run

run = plain_run


def add(run: Path, step: int, **more: float) -> None:
    each = {name: 0.5 + number / 100 for number, name in enumerate(PHENOMENA)}
    metrics = {"accuracy": 0.555, "low": 0.55, "high": 0.56, "chance": 0.5, "examples": 67_000, **each, **more}
    entries = json.loads((run / "eval.json").read_text())
    entry = {"task": "zero-shot/blimp", "split": "dev", "step": step, "metrics": metrics}
    (run / "eval.json").write_text(json.dumps([*entries, entry]))


def test_the_last_checkpoint_beside_printed_models(run: Path) -> None:
    assert lines([read(run)]) == []
    add(run, 100)
    add(run, 200, control=0.502, binding=0.625)
    first, control, chance, *printed = lines([read(run)])
    assert (first.name, first.mean) == (f"{read(run).name}, step 200", "55.5 (55.0 to 56.0)")
    assert first.phenomena[list(PHENOMENA).index("binding")] == "62.5"
    assert (control.mean, chance.mean) == ("50.2", "50.0")
    assert [line.name.partition(",")[0] for line in printed] == [*BABYLM, *BLIMP]
    assert all(line.printed for line in printed)
    page = write_report([run]).read_text()
    assert "<td>62.5</td>" in page
    assert '<tr style="font-style: italic"><td>OPT-125m, BabyLM</td><td>62.6</td>' in page


@pytest.mark.parametrize(("name", "mean"), [("OPT-125m", 62.6), ("RoBERTa-base", 69.5), ("T5-base", 58.8)])
def test_printed_means(name: str, mean: float) -> None:
    """BabyLM prints them rounded."""
    assert len(BABYLM[name]) == len(PHENOMENA)
    assert sum(BABYLM[name]) / len(PHENOMENA) == pytest.approx(mean, abs=0.06)


def test_the_phenomena_are_those_of_the_data() -> None:
    assert {pair.group for pair in read_pairs(shared_data("blimp"))} == {*PHENOMENA}
