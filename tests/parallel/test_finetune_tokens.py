"""Fine-tuning on spans and tags: every layout has the numbers of one process (dropout on), and so has a run that was
killed on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from gpt1_ds.common.errors import LaunchError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.launcher import launch
from gpt1_ds.tasks.metrics import read_submission
from tests.helpers import finetuning
from tests.helpers.finetuning import assert_alike
from tests.helpers.foreign import ENCODER, make_checkpoint
from tools import runs, small_tasks

STEPS = 8
CASES = [
    *(("span", layout) for layout in ("tp2-sequence", "pp2", "tp2-pp2", "zero3")),
    *(("tagging", layout) for layout in ("tp2", "zero2", "whole", "zero3")),
]
Arguments = Callable[[str, str, str], list[str]]
Run = Callable[[str, str, str], Path]


@pytest.fixture(scope="module")
def arguments(sentence_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Arguments:
    place, tokenizer = tmp_path_factory.mktemp("runs"), sentence_data.parent / "tokenizer"
    encoder = make_checkpoint(place / "encoder", tokenizer, ENCODER)
    causal = [f"task.tokenizer={tokenizer}", "model.layers=2", "model.width=32", "model.heads=2", "model.context=48"]

    def of(model: str, shape: str, name: str) -> list[str]:
        begin = [f"checkpoint.init_from={encoder}"] if model == "encoder" else causal
        task = small_tasks.make_task(place / shape, shape)
        return [*task, *begin, "task.stride=16", f"run.dir={place}", f"run.name={name}", f"train.steps={STEPS}"]

    return of


@pytest.fixture(scope="module")
def run(arguments: Arguments) -> Run:
    @cache
    def finetuned(model: str, shape: str, layout: str) -> Path:
        ranks, cut = finetuning.LAYOUTS[layout]
        given = [*arguments(model, shape, f"{model}-{shape}-{layout}"), *cut]
        assert finetuning.finetune(given, ranks) == 0
        return finetuning.folder(given).path

    return finetuned


@pytest.mark.parametrize(("shape", "layout"), CASES)
def test_every_layout_equals_one_process(shape: str, layout: str, run: Run) -> None:
    one, other = run("encoder", shape, "one"), run("encoder", shape, layout)
    assert_alike(one, other, STEPS, 1e-5)
    file = next((one / "predictions").iterdir())
    assert read_submission(file) == read_submission(other / "predictions" / file.name)


@pytest.mark.parametrize("shape", ["span", "tagging"])
def test_a_causal_model_reads_tokens_too(shape: str, run: Run) -> None:
    assert_alike(run("causal", shape, "one"), run("causal", shape, "tp2"), STEPS, 1e-5)


def test_a_killed_run_goes_on_to_the_same_bits(arguments: Arguments, run: Run) -> None:
    whole, given = RunDir(run("encoder", "tagging", "one")), arguments("encoder", "tagging", "killed")
    with pytest.raises(LaunchError):  # when the checkpoint of the first epoch is there, which has 6 steps
        launch.launch("tests.helpers.finetuning:end_at", (finetuning.configuration(given), "naming", 6), 1)
    killed = finetuning.folder(given)
    assert not killed.best.exists()
    assert finetuning.finetune(given) == 0
    assert runs.losses(killed) == runs.losses(whole)
    assert runs.weights(killed) == runs.weights(whole)
    assert finetuning.scores(killed) == finetuning.scores(whole)
