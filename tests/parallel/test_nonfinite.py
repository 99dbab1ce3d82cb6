"""A batch whose gradients are not finite, or that is vetoed, is skipped alike on every rank and leaves no trace."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from gpt1_ds.launcher import launch
from tests.parallel.test_gradients import MODEL, VOCABULARY, batch

ENGINES = {
    "zero0": (2, ["parallel.zero=0"]),
    "zero1": (2, []),
    "zero2": (2, ["parallel.zero=2"]),
    "zero3": (2, ["parallel.zero=3"]),
    "pp2": (2, ["parallel.pipeline=2"]),
    "tp2-zero0": (2, ["parallel.tensor=2", "parallel.zero=0"]),
    "bf16": (2, ["train.precision=bf16"]),
    "bf16-pp2": (2, ["train.precision=bf16", "parallel.pipeline=2"]),
    "bf16-zero3": (2, ["train.precision=bf16", "parallel.zero=3"]),
}


@cache
def run(engine: str, how: str) -> list[dict[str, Any]]:
    """What `three_steps` gives on each rank."""
    ranks, arguments = ENGINES[engine]
    overrides = [*MODEL, *arguments, "train.global_batch=8", "train.micro_batch=4"]
    return launch.run("tests.helpers.engines:on_engine", (overrides, VOCABULARY, three_steps, how), ranks)


@pytest.mark.parametrize("how", ["nan", "rejected"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_update_is_skipped_everywhere(engine: str, how: str) -> None:
    for with_poison, without in zip(run(engine, how), run(engine, "clean"), strict=True):
        assert with_poison["applied"] == [True, False, True]
        assert with_poison["norms"][1] == float("inf")
        if how == "rejected":
            asked = with_poison["asked"]
            assert [loss for loss, _ in asked] == with_poison["losses"]
            assert [asked[0][1], asked[2][1]] == pytest.approx(without["norms"], rel=1e-6)
        for (name, values), (_, wanted) in zip(with_poison["weights"], without["weights"], strict=True):
            assert np.array_equal(values, wanted), f"{name}: as if the batch had never been there"


def three_steps(engine: Any, config: Any, how: str) -> dict[str, Any]:
    """Steps 1, 2 and 3; the second has a NaN in one row's loss, or is rejected, or (clean) is left out."""
    import torch

    from gpt1_ds.engine.base import MicroBatch
    from gpt1_ds.engine.build import batch_shape
    from gpt1_ds.model.dropout import row_keys
    from gpt1_ds.objectives.base import row_facts
    from tests.helpers.engines import pieces

    tokens, labels, weights = (torch.from_numpy(array) for array in batch())
    results, asked = [], []

    def rejects(loss: float, norm: float) -> bool:
        asked.append((loss, norm))
        return len(asked) == 2

    if how == "rejected":
        engine.filter_updates(rejects)
    for step in (1, 2, 3):
        if step == 2 and how == "clean":
            continue
        weighed = weights.float() * 2
        if step == 2 and how == "nan":
            weighed[7, 5] = float("nan")  # in the last row: on one data-parallel rank only
        batches = [
            MicroBatch(
                (tokens[rows].T.contiguous(), torch.from_numpy(row_facts(row_keys(config.run.seed, step, rows)))),
                (labels[rows].T.contiguous(), weighed[rows].T.contiguous()),
            )
            for rows in batch_shape(config, engine.groups).rows()
        ]
        results.append(engine.step(batches, 1e-3))
    return {
        "applied": [result.applied for result in results],
        "norms": [result.grad_norm for result in results],
        "losses": [result.loss for result in results],
        "asked": asked,
        "weights": [(info.name, values) for info, _, values in pieces(engine, "master", owned=False)],
    }
