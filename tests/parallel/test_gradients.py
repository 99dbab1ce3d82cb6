"""Gradients against an independent restatement of GPT-1, with and without dropout, on every kind of engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gpt1_ds.config import load
from gpt1_ds.launcher import launch
from tests.helpers.reference import Reference, row_key
from tests.helpers.weights import initial_weights, relative
from tools.layouts import whole_weights

VOCABULARY, HEADS, SEED, STEP = 300, 4, 11, 3  # 300 ids are padded to 384 rows: padding is part of the test
MODEL = ["model.layers=2", "model.width=32", f"model.heads={HEADS}", "model.context=24", f"run.seed={SEED}"]
TRAIN = ["train.global_batch=8", "train.micro_batch=2", "optimizer.clip=0"]
ENGINES = {
    "dense-zero0": (1, ["parallel.zero=0"]),
    "dense-zero1": (1, []),
    "recompute": (1, ["train.recompute=block"]),
    "pipelined": (1, ["parallel.assembly=pipeline"]),
    "pipelined-recompute": (2, ["parallel.pipeline=2", "train.recompute=block"]),
    "compiled": (1, ["train.compile=on"]),
    "tp2": (2, ["parallel.tensor=2"]),
    "tp2-sequence": (2, ["parallel.tensor=2", "parallel.sequence=true"]),
    "tp2-pp2-sequence": (4, ["parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=2"]),
    "zero3-tp2": (4, ["parallel.zero=3", "parallel.tensor=2"]),
    "zero2": (2, ["parallel.zero=2"]),
}


def batch(valid_share: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, labels and weights [8, 24]; a weight is 1 / (tokens that count) x (what DeepSpeed divides by)."""
    draw = np.random.default_rng(0)
    text = draw.integers(0, VOCABULARY, (8, 25))
    counts = draw.random((8, 24)) < valid_share
    return text[:, :-1], text[:, 1:], counts / counts.sum()


def reference(dropout: float, rows: tuple[np.ndarray, ...]) -> tuple[float, dict[str, np.ndarray]]:
    config = load([], MODEL)
    weights = {
        name: value.double().requires_grad_() for name, value in initial_weights(config.model, VOCABULARY, SEED).items()
    }
    tokens, labels, weight = (torch.from_numpy(array) for array in rows)
    keys = [row_key(SEED, STEP, row) for row in range(8)]
    logits = Reference(weights, HEADS, dropout).logits(tokens, keys)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    loss = (losses * weight.flatten()).sum()
    loss.backward()
    return float(loss.detach()), {name: value.grad.numpy() for name, value in weights.items()}


def run(
    engine: str, rows: tuple[np.ndarray, ...], *overrides: str
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    ranks, given = ENGINES[engine]
    config = load([], [*MODEL, *TRAIN, *given, *overrides])
    divided_by = config.train.global_batch // config.train.micro_batch  # micro-batches x data-parallel ranks
    tokens, labels, weights = rows
    arguments = ([*MODEL, *TRAIN, *given, *overrides], VOCABULARY, gradients_here)
    rows = (tokens, labels, (weights * divided_by).astype(np.float32))
    results = launch.run("tests.helpers.engines:on_engine", (*arguments, rows, STEP), ranks)
    return results, whole_weights([result["gradients"] for result in results])


def gradients_here(engine: Any, config: Any, rows: Any, step: int) -> Any:
    from tests.helpers.engines import gradients

    return gradients(engine, config, rows, step)


CASES = [(engine, dropout) for engine in ENGINES if engine != "compiled" for dropout in (0.0, 0.1)]
COMPILED = pytest.param("compiled", 0.1, marks=pytest.mark.slow)  # masks are in its graph, so that it proves both


@pytest.mark.parametrize(("engine", "dropout"), [*CASES, COMPILED])
def test_gradients_equal_the_reference(engine: str, dropout: float) -> None:
    rates = [f"model.{kind}_dropout={dropout}" for kind in ("residual", "embedding", "attention")]
    loss, wanted = reference(dropout, batch())
    results, found = run(engine, batch(), *rates)
    assert set(found) == set(wanted), "every trainable parameter has a gradient"
    assert abs(results[0]["loss"] - loss) < 2e-6
    for name, want in wanted.items():
        assert np.isfinite(found[name]).all(), name
        assert relative(name, found[name], want, HEADS) < 1e-5, name
    norm = np.sqrt(sum(float((want**2).sum()) for want in wanted.values()))
    for result in results:
        assert abs(result["norm"] / norm - 1) < 1e-6, "the norm before clipping is that of the whole model"


@pytest.mark.parametrize(
    ("engine", "micro_batch"),
    [(engine, rows) for engine in ("dense-zero1", "pipelined-recompute") for rows in (1, 2, 4, 8)]
    + [("zero2", rows) for rows in (1, 2, 4)],  # two ranks share the eight rows
)
def test_masked_tokens_weigh_the_same_however_the_batch_is_cut(engine: str, micro_batch: int) -> None:
    rows = batch(valid_share=0.3)
    _, wanted = reference(0.1, rows)
    _, found = run(engine, rows, f"train.micro_batch={micro_batch}")
    for name, want in wanted.items():
        assert relative(name, found[name], want, HEADS) < 1e-5, name
