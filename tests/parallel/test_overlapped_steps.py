"""Gradients reduced within the backward pass are those reduced after it, to the bit, here on CPU ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.launcher import launch

pytestmark = pytest.mark.slow
MODEL = ["model.layers=4", "model.width=32", "model.heads=2", "model.context=16", "optimizer.clip=0.1"]
PRECISIONS = ("fp32", "bf16", "fp16")
LAYOUTS = {
    "zero0 fp32": (2, ["parallel.zero=0"]),
    **{
        f"zero{stage} {precision}": (2, [f"parallel.zero={stage}", f"train.precision={precision}"])
        for stage in (1, 2, 3)
        for precision in PRECISIONS
    },
    "tp2 zero2 fp32": (4, ["parallel.tensor=2", "parallel.zero=2"]),
    **{f"pp2 {precision}": (4, ["parallel.pipeline=2", f"train.precision={precision}"]) for precision in PRECISIONS},
}


def train_here(overrides: list[str], overlaps: bool, spares: bool = False, poison: float = 1.0) -> Any:
    """Losses, norms, master weights and first moments after three steps of two micro-batches each. The loss of the
    second is multiplied by `poison`; `spares` takes the path of CUDA, which spares waits of the host.
    """
    from dataclasses import replace

    from gpt1_ds.data.sources import open_data
    from gpt1_ds.engine.build import batch_shape, training_batches
    from gpt1_ds.engine.deepspeed import install, overlap, settings
    from tests.helpers.engines import on_engine, pieces

    def train(engine: Any, config: Any) -> Any:
        data, shape = open_data(config), batch_shape(config, engine.groups)
        results = []
        for step in (1, 2, 3):
            batches = training_batches(
                engine.objective, data.training.batch(step, shape).micro_batches, config.run.seed, step
            )
            if step == 2:
                labels, weights = batches[0].labels
                batches[0] = replace(batches[0], labels=(labels, weights * poison))
            result = engine.step(batches, 1e-3)
            results.append((result.loss, result.grad_norm, result.applied))
        return results, pieces(engine, "master"), pieces(engine, "exp_avg")

    overlap.overlaps = lambda _: overlaps  # this rank ends with the test
    install.decides_on_device = lambda _: spares
    settings.BUCKET_ELEMENTS = overlap.BUCKET_ELEMENTS = 4000  # the embedding is larger
    return on_engine(overrides, 500, train)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_are_those_without_overlap(layout: str, tiny_data: Path) -> None:
    ranks, layout_overrides = LAYOUTS[layout]
    overrides = [*MODEL, *layout_overrides, "train.global_batch=8", "train.micro_batch=2", f"data.path={tiny_data}"]
    beside, after = (
        launch.run("tests.parallel.test_overlapped_steps:train_here", (overrides, overlaps), ranks)
        for overlaps in (True, False)
    )
    for mine, other in zip(beside, after, strict=True):
        assert mine[0] == other[0]
        assert any(applied for _, _, applied in mine[0])
        for part in (1, 2):
            for (info, _, values), (_, _, expected) in zip(mine[part], other[part], strict=True):
                assert np.array_equal(values, expected), info.name


@pytest.mark.parametrize("precision", PRECISIONS)
def test_zero_3_without_waits_of_the_host_is_the_same_step(precision: str, tiny_data: Path) -> None:
    overrides = [*MODEL, "parallel.zero=3", f"train.precision={precision}", f"data.path={tiny_data}"]
    overrides += ["train.global_batch=8", "train.micro_batch=2"]
    spared, plain = (
        launch.run("tests.parallel.test_overlapped_steps:train_here", (overrides, spares, spares, float("nan")), 2)
        for spares in (True, False)
    )
    for mine, other in zip(spared, plain, strict=True):
        assert [applied for _, _, applied in mine[0]] == [applied for _, _, applied in other[0]]
        assert not mine[0][1][2], "one step is left out"
        for (_, norm, _), (_, expected, _) in zip(mine[0], other[0], strict=True):
            assert norm == pytest.approx(expected, rel=1e-6)
        for (info, _, values), (_, _, expected) in zip(mine[1], other[1], strict=True):
            np.testing.assert_allclose(values, expected, rtol=2e-4, atol=1e-6, err_msg=info.name)
