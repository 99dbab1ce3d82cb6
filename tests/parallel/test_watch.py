"""`train.watch` on real runs: it changes nothing, is right, and says the same on every layout."""

from __future__ import annotations

import math
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.engine.measured_step import layer_kind
from gpt1_ds.tracking.record import WATCHED
from tests.helpers import foreign
from tools import runs

LAYOUTS = {
    "one": [],
    "tensor": ["parallel.tensor=2"],
    "pipeline": ["parallel.pipeline=2"],
    "zero2": ["parallel.zero=2"],
    "zero3": ["parallel.zero=3"],
}
NOISE = {"noise_scale", "gradient_square", "gradient_variance"}
NORMS = {"gradient_norms", "weight_norms", "update_norms"}


def train_lines(run_dir: RunDir) -> list[dict[str, Any]]:
    return [line for line in read_jsonl(run_dir.metrics) if line["kind"] == "train"]


@pytest.fixture(scope="module")
def run(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    copy = shutil.copytree(tiny_data, tmp_path_factory.mktemp("second") / "copy")
    sources = f"data.path=[{{path: {tiny_data}}}, {{path: {copy}, weight: 3}}]"

    @cache
    def made(layout: str, watch: str = "all") -> RunDir:
        arguments = [sources, f"run.dir={tmp_path_factory.mktemp(layout)}", "train.steps=3", f"train.watch={watch}"]
        arguments += ["checkpoint.every=1", "checkpoint.keep=9", *LAYOUTS[layout]]
        assert runs.pretrain(arguments, 1 if layout == "one" else 2) == 0
        return runs.folder(arguments)

    return made


def test_it_changes_nothing(run) -> None:  # type: ignore[no-untyped-def]
    watched, plain = run("one"), run("one", "off")
    assert (runs.losses(watched), runs.weights(watched)) == (runs.losses(plain), runs.weights(plain))
    for with_more, line in zip(train_lines(watched), train_lines(plain), strict=True):
        assert with_more.keys() - line.keys() == set(WATCHED)
        assert line.keys() <= with_more.keys()


def test_norms_are_those_of_checkpoints(run) -> None:  # type: ignore[no-untyped-def]
    run_dir = run("one")
    before: dict[str, np.ndarray] = {}
    for line in train_lines(run_dir):
        after = masters(run_dir.checkpoint(line["step"]))
        assert line["weight_norms"] == pytest.approx(norms(after), rel=1e-6)
        if before:
            assert line["update_norms"] == pytest.approx(norms({k: after[k] - before[k] for k in after}), rel=1e-6)
        before = after
        squares = [value**2 for value in line["gradient_norms"].values()]
        assert math.sqrt(sum(squares)) == pytest.approx(line["grad_norm"], rel=1e-6)


def test_the_noise_scale_is_that_of_gradients_of_micro_batches(tiny_data: Path, tmp_path: Path) -> None:
    """Weights that do not change and no dropout: steps of one micro-batch each are the parts of a step of two."""
    still = ["optimizer.lr=1e-30", "model.residual_dropout=0", "model.embedding_dropout=0", "model.attention_dropout=0"]
    still += [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.watch=all", "checkpoint.every=0"]
    whole = [*still, "run.name=whole", "train.global_batch=4", "train.steps=1"]
    parts = [*still, "run.name=parts", "train.global_batch=2", "train.steps=2"]
    assert runs.pretrain(whole, 1) == runs.pretrain(parts, 1) == 0
    (line,), small = train_lines(runs.folder(whole)), train_lines(runs.folder(parts))
    assert not any(NOISE & one.keys() for one in small), "one micro-batch tells nothing"
    small_square, square = np.mean([one["grad_norm"] ** 2 for one in small]), line["grad_norm"] ** 2
    gradient, variance = (4 * square - 2 * small_square) / 2, (small_square - square) / (1 / 2 - 1 / 4)
    assert line["gradient_square"] == pytest.approx(gradient, rel=1e-4)
    assert line["gradient_variance"] == pytest.approx(variance, rel=1e-4)
    assert line.get("noise_scale") == (pytest.approx(variance / gradient, rel=1e-3) if gradient > 0 else None)


def test_losses_of_parts_are_those_of_the_batch(run) -> None:  # type: ignore[no-untyped-def]
    """Of every row of 32 tokens, position 0 is one, 1-3 are three, and so on; of 4 rows, 3 are of the second source."""
    for line in train_lines(run("one")):
        counts = {"0": 1, "1-3": 3, "4-15": 12, "16-31": 16}
        mean = sum(counts[name] * loss for name, loss in line["loss_by_position"].items()) / 32
        assert mean == pytest.approx(line["loss"], rel=1e-6)
        first, second = line["loss_by_source"].values()
        assert (first + 3 * second) / 4 == pytest.approx(line["loss"], rel=1e-6)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "one"])
def test_layouts_say_the_same(layout: str, run) -> None:  # type: ignore[no-untyped-def]
    left_out = NOISE if layout == "pipeline" else set()
    for wanted, found in zip(train_lines(run("one")), train_lines(run(layout)), strict=True):
        assert found.keys() == wanted.keys() - left_out
        for key in set(WATCHED) - left_out:
            assert found[key] == pytest.approx(wanted[key], rel=3e-6, abs=1e-9), key


def masters(checkpoint: Path) -> dict[str, np.ndarray]:
    names = manifest.read(checkpoint)["parameters"]
    return {name: foreign.master(checkpoint, name).numpy() for name in names}


def norms(weights: dict[str, np.ndarray]) -> dict[str, float]:
    squares: dict[str, float] = {}
    for name, values in weights.items():
        squares[layer_kind(name)] = squares.get(layer_kind(name), 0.0) + float(
            np.square(values, dtype=np.float64).sum()
        )
    return {kind: math.sqrt(square) for kind, square in squares.items()}
