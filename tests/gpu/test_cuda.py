"""The same promises on one GPU over NCCL; skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpt1_ds.model import attention, dropout
from tests.helpers.weights import relative
from tests.parallel.test_gradients import HEADS, batch, reference, run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


def test_masks_are_the_cpus() -> None:
    keys = torch.from_numpy(dropout.row_keys(3, 4, np.arange(4)))
    ones = torch.ones(33, 4, 65)
    on_cpu = dropout.dropout(ones, keys, 7, 0.1)
    assert torch.equal(on_cpu, dropout.dropout(ones.cuda(), keys.cuda(), 7, 0.1).cpu())


def test_exact_attention_is_the_cpus() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(12, 200, 64) for _ in range(3))
    keys = torch.from_numpy(dropout.row_keys(3, 4, np.arange(2)))
    found = []
    for device in ("cpu", "cuda"):
        key, second = (part.flatten() for part in dropout.site_keys(keys.to(device), 5, 0, 6))
        mask = attention.Mask(key, second, dropout.threshold(0.1), dropout.scale(0.1))
        found.append(attention.exact(q.to(device), k.to(device), v.to(device), mask).cpu())
    assert torch.allclose(*found, atol=1e-4)


@pytest.mark.parametrize("engine", ["dense-zero0", "dense-zero1", "recompute", "pipelined", "compiled"])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_gradients_equal_the_reference(engine: str, rate: float) -> None:
    rates = [f"model.{kind}_dropout={rate}" for kind in ("residual", "embedding", "attention")]
    loss, wanted = reference(rate, batch())
    results, found = run(engine, batch(), *rates)
    assert abs(results[0]["loss"] - loss) < 1e-5
    for name, want in wanted.items():
        assert relative(name, found[name], want, HEADS) < 1e-4, name
