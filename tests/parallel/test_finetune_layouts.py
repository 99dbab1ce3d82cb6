"""Promises 1 and 2 for fine-tuning: one task, every layout, the same numbers (dropout on), whatever layout wrote the
checkpoint it begins from.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.checkpoint.reader import StateReader
from tests.helpers import finetuning
from tests.helpers.foreign import master
from tools import runs, small_tasks

STEPS = 8
LAYOUTS = {
    "one": (1, []),
    "micro-batches": (1, ["train.micro_batch=8", "parallel.zero=0"]),
    "tp2": (2, ["parallel.tensor=2"]),
    "pp2": (2, ["parallel.pipeline=2", "train.micro_batch=1"]),
    "dp2": (2, []),
    "zero3": (2, ["parallel.zero=3", "train.micro_batch=4"]),
    "tp2-pp2": (4, ["parallel.tensor=2", "parallel.pipeline=2", "train.recompute=block"]),
}
MODEL = ["model.layers=2", "model.width=32", "model.heads=2", "model.context=48"]
CASES = [
    *(("choice", layout) for layout in LAYOUTS if layout != "one"),
    ("single", "tp2-pp2"),
    *(("regression", layout) for layout in ("tp2-pp2", "zero3")),
]
NO_LANGUAGE_MODEL = ["task.lm_coefficient=0"]


@pytest.fixture(scope="module")
def origins(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run folders of the same pre-training on two layouts."""
    folder = tmp_path_factory.mktemp("origins")
    found = {}
    for name, ranks, layout in (("tp2", 2, "parallel.tensor=2"), ("zero3", 2, "parallel.zero=3")):
        arguments = [*MODEL, f"data.path={tiny_data}", f"run.dir={folder}", f"run.name={name}", "train.steps=3", layout]
        assert runs.pretrain(arguments, ranks) == 0
        found[name] = str(folder / name)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def fine_tuned(origins: dict[str, str], place: Path):  # type: ignore[no-untyped-def]
    """(training lines, dev scores) of a run on a layout, from the checkpoint that another one wrote."""

    @cache
    def run(shape: str, layout: str, origin: str, extra: tuple[str, ...] = ()) -> tuple[list[Any], list[Any]]:
        ranks, arguments = LAYOUTS[layout]
        arguments = [
            *(
                *small_tasks.make_task(place / shape, shape),
                f"checkpoint.init_from={origins[origin]}",
                *arguments,
                *extra,
            ),
            *(
                f"run.dir={place}",
                f"run.name={'-'.join([shape, layout, *extra]).replace('=', '-')}",
                f"train.steps={STEPS}",
            ),
        ]
        assert finetuning.finetune(arguments, ranks) == 0
        run_dir = finetuning.folder(arguments)
        return finetuning.lines(run_dir, "train"), finetuning.scores(run_dir)

    return run


def assert_alike(one: tuple[list[Any], list[Any]], other: tuple[list[Any], list[Any]], metrics: float) -> None:
    assert [line["batch_fingerprint"] for line in one[0]] == [line["batch_fingerprint"] for line in other[0]]
    assert [line["tokens"] for line in one[0]] == [line["tokens"] for line in other[0]]
    assert len(one[0]) == STEPS
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(one[0], other[0], strict=True)) < 1e-5
    assert max(abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in zip(one[0], other[0], strict=True)) < 1e-4
    finetuning.assert_same_parts(one[0], other[0])
    assert [step for step, _, _ in one[1]] == [6, 8]
    for (step, loss, scores), (other_step, other_loss, other_scores) in zip(one[1], other[1], strict=True):
        assert step == other_step
        assert abs(loss - other_loss) < 1e-5
        assert scores == pytest.approx(other_scores, abs=metrics)


@pytest.mark.parametrize(("shape", "layout"), CASES)
def test_every_layout_equals_one_process(shape: str, layout: str, fine_tuned) -> None:  # type: ignore[no-untyped-def]
    one = fine_tuned(shape, "one", "zero3")
    assert one[0][-1]["loss"] < one[0][0]["loss"] - 0.05, "it learns"
    assert_alike(one, fine_tuned(shape, layout, "zero3" if "tp2" in layout else "tp2"), 1e-4 * (shape == "regression"))


@pytest.mark.parametrize("layout", ["tp2", "pp2", "zero3"])
def test_without_the_language_model(layout: str, fine_tuned) -> None:  # type: ignore[no-untyped-def]
    """The model then has no tied stage."""
    one, other = (fine_tuned("similarity", name, "tp2", tuple(NO_LANGUAGE_MODEL)) for name in ("one", layout))
    assert_alike(one, other, 0)
    assert one[0][0]["loss"] < 1.0, "the loss of the task alone"
    assert all(abs(line["task_loss"] - line["loss"]) < 1e-6 and line["language_loss"] is None for line in one[0])


def test_smoothed_targets_equal_one_process(fine_tuned) -> None:  # type: ignore[no-untyped-def]
    """Those of the classes and those of the tokens; the dev split's loss is that of the right classes alone."""
    arguments = ("task.label_smoothing=0.1", "train.label_smoothing=0.1")
    one, sharp = fine_tuned("choice", "one", "zero3", arguments), fine_tuned("choice", "one", "zero3")
    assert one[0][-1]["loss"] > sharp[0][-1]["loss"] + 0.01, "it learns something else"
    assert_alike(one, fine_tuned("choice", "tp2-pp2", "zero3", arguments), 0)


@pytest.mark.parametrize("layout", ["tp2", "zero3", "tp2-pp2"])
def test_rates_by_layer_equal_one_process(layout: str, fine_tuned) -> None:  # type: ignore[no-untyped-def]
    """The language model's loss is there: both stages of the pipeline hold the embeddings, at their rate."""
    arguments = ("optimizer.layer_decay=0.5",)
    one, plain = fine_tuned("choice", "one", "zero3", arguments), fine_tuned("choice", "one", "zero3")
    assert one[0][0]["loss"] == plain[0][0]["loss"]
    assert one[0][-1]["loss"] > plain[0][-1]["loss"] + 0.01, "it learns more slowly"
    assert_alike(one, fine_tuned("choice", layout, "zero3", arguments), 0)


@pytest.mark.parametrize("layout", ["tp2", "zero3", "tp2-pp2"])
def test_frozen_layers_equal_one_process_and_stay_as_they_are(  # type: ignore[no-untyped-def]
    layout: str, fine_tuned, origins: dict[str, str], place: Path
) -> None:
    """The embeddings and one of two blocks; both stages of the pipeline hold the embeddings."""
    arguments = ("task.frozen_layers=1",)
    one, plain = fine_tuned("choice", "one", "zero3", arguments), fine_tuned("choice", "one", "zero3")
    assert one[0][0]["loss"] == plain[0][0]["loss"]
    assert one[0][0]["grad_norm"] < 0.99 * plain[0][0]["grad_norm"], "gradients of frozen weights are no part of it"
    assert_alike(one, fine_tuned("choice", layout, "zero3", arguments), 0)
    before, after = (
        find_checkpoint(folder) for folder in (Path(origins["zero3"]), place / f"choice-{layout}-task.frozen_layers-1")
    )
    known = StateReader(before).index
    for name in StateReader(after).index:
        is_frozen = name in ("tokens.weight", "positions.weight") or name.startswith("blocks.0.")
        rows = slice(5 if name == "tokens.weight" else 0, None)  # of the first ones three are drawn anew: new symbols
        assert is_frozen == (name in known and torch.equal(master(before, name)[rows], master(after, name)[rows])), name


@pytest.mark.parametrize("layout", ["pp2"])
def test_bf16_stays_close(layout: str, fine_tuned) -> None:  # type: ignore[no-untyped-def]
    one, other = fine_tuned("choice", "one", "zero3"), fine_tuned("choice", layout, "tp2", ("train.precision=bf16",))
    assert [line["batch_fingerprint"] for line in one[0]] == [line["batch_fingerprint"] for line in other[0]]
    assert 0 < max(abs(a["loss"] - b["loss"]) for a, b in zip(one[0], other[0], strict=True)) < 1e-2
