"""Fragments kept for a checkpoint while training continues."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpt1_ds.engine.adamw import AdamW
from gpt1_ds.engine.master_weights import Fragment, fragments, kept, set_loss_scaler
from gpt1_ds.model.names import ParameterInfo
from tests.helpers.optimizers import Weights


def test_kept_fragments_stay_as_they_were() -> None:
    flat, mean, square = (torch.arange(12.0) + start for start in (0, 100, 200))
    fragments = [
        Fragment(ParameterInfo("a", (5,)), 0, flat[:5], {"exp_avg": mean[:5], "exp_avg_sq": square[:5]}),
        Fragment(ParameterInfo("b", (9,)), 2, flat[5:]),
    ]
    copies = kept(fragments)
    for tensor in (flat, mean, square):
        tensor.zero_()
    one, other = copies()
    assert (one.info.name, other.info.name, other.offset) == ("a", "b", 2)
    assert one.master.tolist() == [0, 1, 2, 3, 4]
    assert {kind: values[0].item() for kind, values in one.moments.items()} == {"exp_avg": 100, "exp_avg_sq": 200}
    assert other.master.tolist() == [5, 6, 7, 8, 9, 10, 11]
    assert other.moments == {}


class LargestOfGradients(AdamW):
    """Keeps another moment than Adam's two."""

    def moments(self, flat: torch.Tensor) -> tuple[str]:
        return ("largest",)


def test_what_an_update_rule_keeps_is_in_a_checkpoint_by_its_own_names() -> None:
    """What is left out of a checkpoint is 0 after a resume, and nothing says so."""
    module = Weights()
    optimizer = LargestOfGradients(module.parameters())
    for parameter in module.parameters():
        optimizer.state[parameter] = optimizer.fresh_state(parameter, 1)
        optimizer.state[parameter]["largest"] += 7
    deepspeed = SimpleNamespace(optimizer=optimizer, zero_optimization_stage=lambda: 0)
    engine: Any = SimpleNamespace(optimizer=optimizer, deepspeed=deepspeed, module=module)
    for found in (fragments(engine), kept(fragments(engine))()):
        assert [{*one.saved} for one in found] == [{"master", "largest"}] * len([*module.parameters()])
        assert all(bool((one.saved["largest"] == 7).all()) for one in found)


def test_a_rank_that_saves_nothing_keeps_nothing() -> None:
    assert kept([])() == []


@pytest.mark.parametrize("fp16", [True, False])
def test_only_fp16_takes_over_a_loss_scale(fp16: bool) -> None:
    """Other optimizers of DeepSpeed have no scaler, or one that does not move."""
    optimizer = SimpleNamespace(**({"loss_scaler": SimpleNamespace(cur_scale=1.0)} if fp16 else {}))
    engine: Any = SimpleNamespace(deepspeed=SimpleNamespace(optimizer=optimizer, fp16_enabled=lambda: fp16))
    set_loss_scaler(engine, {"cur_scale": 4096.0})
    assert vars(optimizer) == ({"loss_scaler": SimpleNamespace(cur_scale=4096.0)} if fp16 else {})
