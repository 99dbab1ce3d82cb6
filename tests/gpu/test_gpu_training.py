"""The same promises on one GPU over NCCL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.helpers.weights import relative
from tests.parallel.test_gradients import HEADS, batch, reference, run
from tools import runs


@pytest.mark.parametrize("engine", ["dense-zero0", "dense-zero1", "recompute", "pipelined", "compiled"])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_gradients_equal_the_reference(engine: str, rate: float) -> None:
    rates = [f"model.{kind}_dropout={rate}" for kind in ("residual", "embedding", "attention")]
    loss, wanted = reference(rate, batch())
    results, found = run(engine, batch(), *rates)
    assert abs(results[0]["loss"] - loss) < 1e-5
    for name, want in wanted.items():
        assert relative(name, found[name], want, HEADS) < 1e-4, name


def test_a_profile_has_the_devices_time(tiny_data: Path, tmp_path: Path) -> None:
    words = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=6", "train.profile=3:6"]
    assert runs.pretrain(words, 1) == 0
    summary = json.loads((runs.folder(words).profile / "summary.json").read_text())
    assert summary["device"] == torch.cuda.get_device_name()
    for name in ("forward", "backward", "optimizer"):
        assert summary["phases"][name]["device_seconds"] > 0
    assert all(step["work"][2] > 0 for step in summary["ranks"][0]["steps"])
    assert summary["operators"][0]["device_seconds"] > 0
    assert max(held for _, held in summary["ranks"][0]["memory"]) < torch.cuda.get_device_properties(0).total_memory
