"""Fine-tuning against an independent restatement in float64: loss, gradients, update and predictions."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.launcher import launch
from tests.helpers import finetuning
from tests.helpers.task_reference import Question, Recipe, TaskReference, Update2018, linear, question, read_out
from tests.helpers.weights import relative
from tools import small_tasks
from tools.layouts import whole_weights

HEADS, SEED, STEPS, RATE, WARMUP = 4, 3, 4, 1e-3, 0.002
LENGTH = 1000  # updates of the whole run: two of them warm up
MODEL = ModelConfig(layers=2, width=32, heads=HEADS, context=128)
ARGUMENTS = [
    *("model.layers=2", "model.width=32", f"model.heads={HEADS}", "model.context=128", f"train.steps={LENGTH}"),
    *(f"optimizer.lr={RATE}", f"schedule.warmup_fraction={WARMUP}", "optimizer.weight_decay=0.01"),
]
OUTPUTS = {"single": 2, "pair": 2, "similarity": 2, "regression": 6, "choice": 1, "question": 1}
ENGINES = {
    "zero0": (1, ["parallel.zero=0"]),
    "tp2": (2, ["parallel.tensor=2"]),
    "pp2": (2, ["parallel.pipeline=2", "train.recompute=block"]),
    "zero3": (2, ["parallel.zero=3", "train.micro_batch=4"]),
}


def initial(vocab_size: int, outputs: int) -> dict[str, np.ndarray]:
    """Weights with which logits and scores matter."""
    draw = np.random.default_rng(0)
    shapes = architecture(MODEL, vocab_size, HeadSpec(outputs, 1)).shapes
    weights = {name: draw.standard_normal(shape, dtype=np.float32) * 0.2 for name, shape in shapes.items()}
    return {name: (value + name.endswith("norm.weight")).astype(np.float32) for name, value in weights.items()}


def rows(folder: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


def assert_equals_reference(
    shape: str, overrides: list[str], recipe: Recipe, folder: Path, tokenizer_folder: Path, ranks: int = 1
) -> None:
    """Four updates of the program and of the restatement from the same weights."""
    overrides = [*small_tasks.make_task(folder, shape), f"task.tokenizer={tokenizer_folder}", *ARGUMENTS, *overrides]
    tokenizer = load_tokenizer(tokenizer_folder)
    weights = initial(tokenizer.vocab_size, OUTPUTS[shape])
    arguments = (finetuning.configuration(overrides), tokenizer_folder, weights, STEPS)
    results = launch.run("tests.helpers.engines:fine_tune", arguments, ranks)
    ours = results[0]

    theirs = {name: torch.from_numpy(value).double().requires_grad_() for name, value in weights.items()}
    reference, update = TaskReference(theirs, recipe), Update2018(theirs, clip=1.0, decay=0.01)
    train = [question(shape, row, tokenizer) for row in rows(folder, "train")]
    assert_dev_agrees(shape, ours, reference, [question(shape, row, tokenizer) for row in rows(folder, "dev")])
    norms, ignored = [], without_gradient(recipe)
    for step, ((loss, norm), examples) in enumerate(zip(ours["steps"], ours["examples"], strict=True), 1):
        wanted = reference.loss([train[number] for number in examples], (SEED, step))
        wanted.backward()
        assert abs(loss - wanted.item()) < 1e-5, f"step {step}"
        if step == 1:
            assert_gradients_agree(theirs, whole_weights([result["gradients"] for result in results]), ignored)
        norms.append(update.step(RATE * linear(step, LENGTH, WARMUP)))
        assert abs(norm / norms[-1] - 1) < 1e-5, f"step {step}: the norm before clipping"
    assert min(norms) > 1.0, "clipping must bite"
    found = whole_weights([result["weights"] for result in results])
    assert set(found) == set(weights)
    for name in theirs.keys() - set(ignored):
        moved = theirs[name].detach().numpy() - weights[name]
        assert relative(name, found[name] - weights[name], moved, HEADS) < 1e-3, name


def assert_dev_agrees(shape: str, ours: dict[str, Any], reference: TaskReference, dev: list[Question]) -> None:
    with torch.no_grad():
        scores = reference.scores(dev)
        assert abs(ours["dev_loss"] - float(reference.loss(dev))) < 1e-5
    if shape == "regression":
        np.testing.assert_allclose(ours["predictions"], read_out(scores), atol=1e-4)
    else:
        assert ours["predictions"].tolist() == scores.argmax(-1).tolist()


def assert_gradients_agree(
    theirs: dict[str, torch.Tensor], found: dict[str, np.ndarray], ignored: Collection[str]
) -> None:
    """Clipped ones: all are smaller by one factor."""
    assert set(found) == set(theirs), "every parameter has a gradient"
    norm = np.sqrt(sum(float((p.grad**2).sum()) for p in theirs.values()))
    for name, p in theirs.items():
        if name in ignored:
            assert np.abs(found[name]).max() < 1e-7, name
        else:
            assert relative(name, found[name], p.grad.numpy() / norm, HEADS) < 2e-5, name


def without_gradient(recipe: Recipe) -> tuple[str, ...]:
    """What is the same for all choices is ignored by their softmax: its gradient is rounding."""
    if not recipe.choice:
        return ()
    return ("head.bias",) if recipe.coefficient else ("head.bias", f"blocks.{MODEL.layers - 1}.mlp_norm.bias")


@pytest.fixture
def tokenizer_folder(tiny_data: Path) -> Path:
    return tiny_data.parent / "tokenizer"


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("shape", small_tasks.COLUMNS)
def test_every_kind_of_task(shape: str, dropout: float, tokenizer_folder: Path, tmp_path: Path) -> None:
    rates = [f"model.{kind}_dropout={dropout}" for kind in ("residual", "embedding", "attention")]
    recipe = Recipe(HEADS, shape in ("choice", "question"), 0.5, dropout, dropout)
    assert_equals_reference(shape, [*rates, f"task.head_dropout={dropout}"], recipe, tmp_path, tokenizer_folder)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine(engine: str, tokenizer_folder: Path, tmp_path: Path) -> None:
    ranks, overrides = ENGINES[engine]
    recipe = Recipe(HEADS, True, 0.5, 0.1, 0.1)
    assert_equals_reference("choice", overrides, recipe, tmp_path, tokenizer_folder, ranks)


@pytest.mark.parametrize("shape", ["similarity", "choice"])
def test_without_the_language_model(shape: str, tokenizer_folder: Path, tmp_path: Path) -> None:
    recipe = Recipe(HEADS, shape == "choice", 0.0, 0.1, 0.1)
    assert_equals_reference(shape, ["task.lm_coefficient=0"], recipe, tmp_path, tokenizer_folder)
