"""LAMB's update against a restatement of the paper's algorithm 2 in fp64, and Adafactor's against transformers' own,
which T5 is fine-tuned with.
"""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from transformers.optimization import Adafactor as Theirs

from gpt1_ds.config.sections import OptimizerConfig
from gpt1_ds.engine.muon import Muon
from gpt1_ds.engine.optimizer import make_optimizer
from gpt1_ds.engine.whole_parameters import WholeParameters
from tests.helpers.optimizers import Weights, connected, give_gradients, split

Name = Literal["lamb", "adafactor", "muon"]
NAMES: tuple[Name, ...] = ("lamb", "adafactor", "muon")
RATE, DECAY, EPS = 0.02, 0.1, 1e-6


def made(module: nn.Module, name: Name, scaled: bool = True) -> WholeParameters | Muon:
    settings = OptimizerConfig(name=name, lr=RATE, weight_decay=DECAY, eps=EPS, parameter_scale=scaled)
    optimizer = make_optimizer(module, settings)
    assert isinstance(optimizer, WholeParameters | Muon)
    return connected(optimizer, module)


class Restated:
    """One matrix or vector in fp64."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.detach().double()
        self.mean, self.square, self.steps = torch.zeros_like(self.weight), torch.zeros_like(self.weight), 0

    def step(self, gradient: Tensor) -> None:
        gradient, self.steps = gradient.double(), self.steps + 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean, square = self.mean / (1 - 0.9**self.steps), self.square / (1 - 0.999**self.steps)
        along, ratio = mean / (square.sqrt() + EPS), 1.0
        if self.weight.ndim > 1:
            along = along + DECAY * self.weight
            if self.weight.norm() > 0 and along.norm() > 0:
                ratio = float(self.weight.norm() / along.norm())
        self.weight = self.weight - RATE * ratio * along


def test_lambs_updates_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    module = Weights()
    optimizer = made(module, "lamb")
    wanted = {
        (name, part): Restated(value)
        for name, weight in module.named_parameters()
        for part, value in split(name, weight).items()
    }
    for _ in range(5):
        give_gradients(module)
        for name, weight in module.named_parameters():
            assert weight.grad is not None
            for part, gradient in split(name, weight.grad).items():
                wanted[name, part].step(gradient)
        optimizer.step()
    for name, weight in module.named_parameters():
        assert optimizer.state[weight].keys() == {"step", "exp_avg", "exp_avg_sq"}
        for part, value in split(name, weight.detach().double()).items():
            assert torch.allclose(value, wanted[name, part].weight, rtol=1e-6, atol=1e-7), (name, part)


@pytest.mark.parametrize("zero", ["weight", "gradient"])
def test_a_ratio_that_is_not_defined_is_1(zero: str) -> None:
    torch.manual_seed(0)
    module = Weights()
    if zero == "weight":
        nn.init.zeros_(module.out)
    optimizer, wanted = made(module, "lamb"), Restated(module.out)
    give_gradients(module)
    module.out.grad.mul_(float(zero != "gradient"))
    wanted.step(module.out.grad)
    optimizer.step()
    assert torch.isfinite(module.out).all()
    assert torch.allclose(module.out.double(), wanted.weight, atol=1e-7)


@pytest.mark.parametrize("scaled", [True, False])
def test_adafactors_updates_are_those_of_transformers(scaled: bool) -> None:
    torch.manual_seed(0)
    module = Weights()
    nn.init.zeros_(module.qkv_bias)  # its scale is the smallest
    theirs = {
        (name, part): nn.Parameter(value.detach().clone())
        for name, weight in module.named_parameters()
        for part, value in split(name, weight).items()
    }
    arguments = {"lr": RATE, "scale_parameter": scaled, "relative_step": False, "warmup_init": False}
    groups = [
        {"params": [one for one in theirs.values() if (one.ndim > 1) == decays], "weight_decay": DECAY * decays}
        for decays in (True, False)
    ]
    ours, other = made(module, "adafactor", scaled), Theirs(groups, **arguments)
    for step in range(6):
        give_gradients(module)
        for name, weight in module.named_parameters():
            assert weight.grad is not None
            weight.grad *= 0.1 if step < 3 else 3.0  # the fourth update is clipped
            for part, gradient in split(name, weight.grad).items():
                theirs[name, part].grad = gradient.clone()
        ours.step()
        other.step()
    for name, weight in module.named_parameters():
        for part, value in split(name, weight.detach()).items():
            assert torch.allclose(value, theirs[name, part], rtol=2e-6, atol=2e-7), (name, part)


def test_matrices_keep_a_number_for_each_row_and_column() -> None:
    torch.manual_seed(0)
    module = Weights()
    optimizer = made(module, "adafactor")
    give_gradients(module)
    optimizer.step()
    for name, weight in module.named_parameters():
        state = optimizer.state[weight]
        if weight.ndim == 1:
            assert state["exp_avg_sq"].shape == weight.shape
            continue
        assert "exp_avg_sq" not in state
        rows, columns = weight.numel() // weight.shape[-1], len(split(name, weight)) * weight.shape[-1]
        assert [len(state[key][name]) for key in ("exp_avg_sq_row", "exp_avg_sq_col")] == [rows, columns]


@pytest.mark.parametrize("name", NAMES)
def test_an_update_that_is_left_out_on_the_device_never_happened(name: Name) -> None:
    torch.manual_seed(0)
    modules = [Weights() for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    one, other = (made(module, name) for module in modules)
    for step in range(4):
        give_gradients(*modules)
        if step in (0, 2):
            modules[0].out.grad[0, 0] = torch.nan
        one.found_inf = torch.tensor(float(step in (0, 2)))
        one.step()
        if step not in (0, 2):
            other.step()
    for parameter, wanted in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        assert torch.equal(parameter, wanted)
    assert all(float(state["step"]) == 2 for state in one.state.values())


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_divided_and_copies_written(name: Name) -> None:
    torch.manual_seed(0)
    modules = [Weights() for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    one, other = (made(module, name) for module in modules)
    one.copies = {p: torch.empty_like(p, dtype=torch.bfloat16) for p in modules[0].parameters()}
    one.grad_scale = torch.tensor(4.0)
    give_gradients(*modules)
    for parameter in modules[0].parameters():
        parameter.grad.mul_(4.0)
    one.step()
    other.step()
    for parameter, wanted in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        assert torch.equal(parameter, wanted)
        assert torch.equal(one.copies[parameter], wanted.detach().bfloat16())
