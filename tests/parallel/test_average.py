"""The mean of a run's checkpoints, which one layout wrote and another loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import load_carried, with_vocabulary
from gpt1_ds.evaluation.average import average_checkpoints
from gpt1_ds.launcher import launch
from gpt1_ds.model.names import ParameterInfo
from tools.layouts import _layout
from tools.resume_matrix import save_on

SMALL = ["model.layers=2", "model.width=32", "model.heads=2", "model.context=16", "train.micro_batch=4"]


def test_the_mean_is_of_the_weights_and_every_layout_loads_it(tiny_data: Path, tmp_path: Path) -> None:
    extra = [*SMALL, "checkpoint.every=1", "checkpoint.keep=3"]
    last = save_on(_layout(2, "tp2"), tiny_data, tmp_path, "fp32", 3, extra)
    run, out = last.parent.parent, tmp_path / "mean"
    assert average_checkpoints(run, 2, out) == steps_in(last.parent)[1:]
    facts, config = manifest.read(out), load_carried(out / "config.yaml")
    assert facts["step"] == 3
    assert facts["hashes"]["data"] == ""
    assert config.model.vocab_size is not None
    readers = [StateReader(folder) for folder in (*steps_in(last.parent)[1:], out)]
    assert not readers[-1].has_moments
    for parameter in architecture(config.model, config.model.vocab_size).parameters.values():
        info = ParameterInfo.whole(parameter)
        one, other, found = (reader.whole("master", info) for reader in readers)
        assert not torch.equal(one, other), parameter.name
        assert torch.equal(found, ((one.double() + other.double()) / 2).float()), parameter.name
    arguments = [*SMALL, "train.global_batch=8", f"data.path={tiny_data}", "parallel.pipeline=2"]
    loss = facts["probe"]["loss"]
    assert (
        launch.run("tests.parallel.test_average:probe_here", (arguments, out, config.model.vocab_size), 2) == [loss] * 2
    )
    with pytest.raises(
        CheckpointError, match=r"has 3 checkpoints, --last 4 asks for more; use fewer.*checkpoint\.keep=4"
    ):
        average_checkpoints(run, 4, tmp_path / "more")
    with pytest.raises(CheckpointError, match="--last 1: is no mean"):
        average_checkpoints(run, 1, tmp_path / "one")


def probe_here(arguments: list[str], folder: Path, vocab_size: int) -> float:
    """Restores the weights, which compares hashes and the probe's loss; that loss."""
    from gpt1_ds.checkpoint.restore import restore
    from tests.helpers.engines import on_engine

    def load(engine: Any, config: Any) -> float:
        config = with_vocabulary(config, vocab_size)
        return float(restore(engine, config, folder, weights_only=True)["probe"]["loss"])

    return on_engine(arguments, vocab_size, load)  # type: ignore[no-any-return]
