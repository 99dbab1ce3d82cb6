"""Copies of one parameter on several ranks stay equal to the last bit: LayerNorms, biases, positions, tied
embeddings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.launcher import launch

LAYOUTS = {
    "tp2-pp2": (4, ["parallel.tensor=2", "parallel.pipeline=2"]),
    "tp2-zero3": (2, ["parallel.tensor=2", "parallel.zero=3"]),
    "pp2-bf16": (2, ["parallel.pipeline=2", "train.precision=bf16"]),
    "pp2-fp16": (2, ["parallel.pipeline=2", "train.precision=fp16"]),
    "tp2-sequence-pp2": (4, ["parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true"]),
    "dp2-zero0": (2, ["parallel.zero=0"]),
}
STEPS = 50
MODEL = ["model.layers=2", "model.width=32", "model.heads=2", "model.context=16", "optimizer.clip=0.1"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_do_not_drift(layout: str, tiny_data: Path) -> None:
    ranks, arguments = LAYOUTS[layout]
    overrides = [*MODEL, *arguments, f"data.path={tiny_data}", "train.global_batch=8", "train.micro_batch=4"]
    results = launch.run("tests.helpers.engines:on_engine", (overrides, 500, train_here), ranks)
    copies: dict[tuple[Any, ...], list[np.ndarray]] = {}
    for held in results:
        for info, part, values in held:
            copies.setdefault((info.name, part), []).append(values)
    several = {key: values for key, values in copies.items() if len(values) > 1}
    assert several, "this layout has copies"
    if "pp2" in layout:
        assert any(name == "tokens.weight" for name, _ in several), "the tied embedding is held twice"
    for (name, part), values in several.items():
        for other in values[1:]:
            assert np.array_equal(values[0].view(np.int32), other.view(np.int32)), f"{name} {part}"


def train_here(engine: Any, config: Any) -> Any:
    from gpt1_ds.data.sources import open_data
    from gpt1_ds.engine.build import batch_shape, training_batches
    from tests.helpers.engines import pieces

    data, shape = open_data(config), batch_shape(config, engine.groups)
    for step in range(1, STEPS + 1):
        batch = data.training.batch(step, shape)
        engine.step(training_batches(engine.objective, batch.micro_batches, config.run.seed, step), 1e-3)
    return pieces(engine, "master", owned=False)
