"""The bf16 step with the passes left out that change nothing, beside DeepSpeed's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.launcher import launch

pytestmark = pytest.mark.slow
LAYOUTS = {
    "one": (1, []),
    "dp2": (2, []),
    "pp2": (2, ["parallel.pipeline=2"]),
    "pp2-dp2": (4, ["parallel.pipeline=2"]),
}
MODEL = ["model.layers=4", "model.width=32", "model.heads=2", "model.context=16", "train.precision=bf16"]


def train_here(overrides: list[str], steps: int, how: str, poison: float = 1.0) -> Any:
    """Norms, masters and first moments after steps of two micro-batches each. `how`: `theirs` is DeepSpeed's own,
    `device` what runs on CUDA, where step 3 has gradients that are not finite; `partitions` also the norm as there.
    """
    from dataclasses import replace

    from gpt1_ds.data.sources import open_data
    from gpt1_ds.engine import gradient_norm
    from gpt1_ds.engine.build import batch_shape, training_batches
    from gpt1_ds.engine.deepspeed import bf16, install, overlap
    from tests.helpers.engines import on_engine, pieces

    def train(engine: Any, config: Any) -> Any:
        from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

        assert isinstance(engine.deepspeed.optimizer, BF16_Optimizer), "what the patch is for"
        data, shape = open_data(config), batch_shape(config, engine.groups)
        norms = []
        for step in range(1, steps + 1):
            batches = training_batches(
                engine.objective, data.training.batch(step, shape).micro_batches, config.run.seed, step
            )
            if step == 3:
                labels, weights = batches[0].labels
                batches[0] = replace(batches[0], labels=(labels, weights * float(poison)))
            norms.append(engine.step(batches, 1e-3).grad_norm)
        return norms, pieces(engine, "master"), pieces(engine, "exp_avg")

    if how == "partitions":
        bf16.reads_partition = lambda _: True
        gradient_norm._BLOCK = 1000  # a dot product of a whole partition is off by 2e-6 on cores without AVX-512
    if how in ("device", "partitions"):
        bf16.decides_on_device = install.decides_on_device = overlap.overlaps = lambda _: True
        overlap.BUCKET_ELEMENTS = 1000
    own = ["train.deepspeed_patches=fixes"] if how == "theirs" else []
    return on_engine([*overrides, *own], 500, train)


@pytest.mark.parametrize("clip", [0, 0.1, 100])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_are_deepspeeds_own(layout: str, clip: float, tiny_data: Path) -> None:
    ranks, arguments = LAYOUTS[layout]
    batch = ["train.global_batch=8", f"train.micro_batch={2 if 'dp2' in layout else 4}"]
    overrides = [*MODEL, *arguments, *batch, f"data.path={tiny_data}", f"optimizer.clip={clip}"]
    clipped = clip == 0.1
    steps = 1 if clipped else 5  # a last bit that differs in fp32 is now and then another bf16 weight in the next step
    ours, theirs = (
        launch.run("tests.parallel.test_bf16_optimizer:train_here", (overrides, steps, how), ranks)
        for how in ("ours", "theirs")
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert mine[0] == pytest.approx(other[0], rel=1e-6)  # ours is the preciser sum
        assert not clipped or mine[0][0] > clip, "there is something to clip"
        for part in (1, 2):
            for (info, _, values), (_, _, expected) in zip(mine[part], other[part], strict=True):
                if clipped:  # a division in the place of a multiplication
                    np.testing.assert_allclose(values, expected, rtol=2e-6, atol=1e-9, err_msg=info.name)
                else:
                    assert np.array_equal(values, expected), info.name


@pytest.mark.parametrize("clip", [0, 0.1])
@pytest.mark.parametrize("layout", ["dp2", "pp2-dp2"])
def test_sums_that_the_update_divides_are_the_means_of_before(layout: str, clip: float, tiny_data: Path) -> None:
    ranks, arguments = LAYOUTS[layout]
    batch = ["train.global_batch=8", "train.micro_batch=2"]
    overrides = [*MODEL, *arguments, *batch, f"data.path={tiny_data}", f"optimizer.clip={clip}"]
    device, ours = (
        launch.run("tests.parallel.test_bf16_optimizer:train_here", (overrides, 3, how), ranks)
        for how in ("device", "ours")
    )
    for mine, other in zip(device, ours, strict=True):
        assert mine[0] == other[0]
        for part in (1, 2):
            for (info, _, values), (_, _, expected) in zip(mine[part], other[part], strict=True):
                assert np.array_equal(values, expected), info.name


@pytest.mark.parametrize(("ranks", "layout"), [(1, []), (2, []), (4, ["tensor"]), (4, ["pipeline"])])
def test_the_norm_of_partitions_is_that_of_all_gradients(ranks: int, layout: list[str], tiny_data: Path) -> None:
    arguments = [f"parallel.{axis}=2" for axis in layout]
    overrides = [*MODEL, *arguments, "train.global_batch=8", "train.micro_batch=2", f"data.path={tiny_data}"]
    partitions, ours = (
        launch.run("tests.parallel.test_bf16_optimizer:train_here", (overrides, 1, how), ranks)
        for how in ("partitions", "ours")
    )
    for mine, other in zip(partitions, ours, strict=True):
        assert mine[0] == pytest.approx(other[0], rel=1e-6)
        assert mine[0] == partitions[0][0], "all ranks have the same"


@pytest.mark.parametrize("name", ["adamw", "adam2018", "muon"])
@pytest.mark.parametrize("layout", ["dp2", "pp2"])
def test_what_runs_on_cuda_is_the_same_step(layout: str, name: str, tiny_data: Path) -> None:
    """The update decides by itself, on CPU numbers here; gradients are reduced within the backward pass."""
    ranks, arguments = LAYOUTS[layout]
    batch = ["train.global_batch=8", f"train.micro_batch={2 if layout == 'dp2' else 4}"]
    overrides = [*MODEL, *arguments, *batch, f"data.path={tiny_data}", "optimizer.clip=0.1", f"optimizer.name={name}"]
    device, ours = (
        launch.run("tests.parallel.test_bf16_optimizer:train_here", (overrides, 4, how, float("nan")), ranks)
        for how in ("device", "ours")
    )
    for mine, other in zip(device, ours, strict=True):
        assert mine[0] == pytest.approx(other[0], rel=1e-5)
        assert mine[0][2] == float("inf"), "one step is left out"
        assert mine[0][3] > 0.1, "the others are clipped"
        for part in (1, 2):
            for (info, _, values), (_, _, expected) in zip(mine[part], other[part], strict=True):
                np.testing.assert_allclose(values, expected, rtol=2e-4, atol=1e-7, err_msg=info.name)
