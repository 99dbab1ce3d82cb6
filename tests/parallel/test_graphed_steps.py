"""Whole steps of the engine whose micro-batches are launched as graphs; a replay is the pass again, on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.engine.graphs import WARM_UP
from gpt1_ds.launcher import launch

MODEL = ["model.layers=2", "model.width=32", "model.heads=2", "model.context=16", "train.precision=bf16"]
STEPS = WARM_UP + 3


def train_here(overrides: list[str], how: str) -> Any:
    """(losses and norms, masters, graphs in use, why there are none). `how`: plain, graphs, or fails: on the last rank
    the backward pass of a capture ends with an error.
    """
    from types import SimpleNamespace

    import torch

    from gpt1_ds.data.sources import open_data
    from gpt1_ds.engine import base, bf16_optimizer_patch, plain
    from gpt1_ds.engine.build import batch_shape, training_batches
    from tests.helpers.engines import on_engine, pieces
    from tools.fakecuda.graphs import Repeats

    class HostApart(Repeats):
        engine: Any

        def capture(self, work: Any) -> Any:
            deepspeed, gradients = self.engine.deepspeed, self.engine.graphs.gradients
            reduce = deepspeed.allreduce_gradients

            def fail(*_: Any, **__: Any) -> None:
                reduce()
                raise RuntimeError("no capture today")

            if how == "fails" and self.engine.groups.rank == self.engine.groups.world - 1:
                deepspeed.allreduce_gradients = fail
            try:
                repeat, results = super().capture(work)
            finally:
                deepspeed.allreduce_gradients = reduce

            def replay() -> None:
                marks = gradients.marks()
                repeat()
                gradients.mark(marks)

            return replay, results

    def train(engine: Any, config: Any) -> Any:
        heard: list[str] = []
        engine.progress = heard.append
        if engine.graphs is not None:
            engine.graphs.recorder.engine = engine
        data, shape = open_data(config), batch_shape(config, engine.groups)
        numbers = []
        for step in range(1, STEPS + 1):
            batches = training_batches(data.training.batch(step, shape).micro_batches, config.run.seed, step)
            result = engine.step(batches, 1e-3)
            numbers.append((result.loss, result.grad_norm))
            if step == 2:
                numbers.append((engine.evaluate(batches), 0.0))
        found = engine.graphs
        told = heard[-heard[::-1].index("update") :], [phase for phase in heard if "capture" in phase]
        return numbers, pieces(engine, "master"), found and found.count, found and found.problem, told

    base.decides_on_device = bf16_optimizer_patch.decides_on_device = plain.overlaps = lambda _: True
    plain.BUCKET_ELEMENTS = 1000
    plain.CudaRecorder = HostApart  # type: ignore[misc, assignment]  # this rank ends with the test
    plain.kernels = SimpleNamespace(available=lambda _: True)  # type: ignore[assignment]
    torch.set_num_threads(1)
    return on_engine([*overrides, f"train.cuda_graphs={'off' if how == 'plain' else 'auto'}"], 500, train)


@pytest.mark.parametrize(
    ("layout", "ranks", "micro_batch", "graphs"),
    [
        ([], 1, 6, 1),  # one micro-batch a step
        ([], 1, 2, 2),  # the first writes gradients, the others add to them
        ([], 2, 1, 3),  # and the last one reduces them
        (["parallel.tensor=2", "train.recompute=block"], 2, 3, 2),
    ],
)
def test_graphed_steps_are_the_ordinary_ones(
    layout: list[str], ranks: int, micro_batch: int, graphs: int, tiny_data: Path
) -> None:
    overrides = [*MODEL, *layout, "train.global_batch=6", f"train.micro_batch={micro_batch}", f"data.path={tiny_data}"]
    plain, graphed, failing = (
        launch.run("tests.parallel.test_graphed_steps:train_here", (overrides, how), ranks)
        for how in ("plain", "graphs", "fails")
    )
    for wanted, *others in zip(plain, graphed, failing, strict=True):
        for found in others:
            assert found[0] == wanted[0]
            for (info, _, values), (_, _, expected) in zip(found[1], wanted[1], strict=True):
                assert np.array_equal(values, expected), info.name
        assert wanted[2:4] == (None, None)
        assert others[0][2:4] == (graphs, None)
        assert others[1][2:4] == (0, f"rank {ranks - 1}: RuntimeError: no capture today")
        assert len(others[0][4][1]) == graphs
        assert len(others[1][4][1]) == 1
