"""LAMB's update against a restatement of the paper's algorithm 2 in fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gpt1_ds.config.sections import OptimizerConfig
from gpt1_ds.engine.optimizer import Lamb, make_optimizer
from tests.helpers.optimizers import Weights, connected, give_gradients

RATE, DECAY, EPS = 0.02, 0.1, 1e-6


def made(module: nn.Module) -> Lamb:
    optimizer = make_optimizer(module, OptimizerConfig(name="lamb", lr=RATE, weight_decay=DECAY, eps=EPS))
    assert isinstance(optimizer, Lamb)
    return connected(optimizer, module)


class Restated:
    """One weight in fp64."""

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


def test_updates_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    module = Weights()
    optimizer = made(module)
    wanted = {name: Restated(weight) for name, weight in module.named_parameters()}
    for _ in range(5):
        give_gradients(module)
        for name, weight in module.named_parameters():
            assert weight.grad is not None
            wanted[name].step(weight.grad)
        optimizer.step()
    for name, weight in module.named_parameters():
        assert torch.allclose(weight.double(), wanted[name].weight, rtol=1e-6, atol=1e-7), name
        assert optimizer.state[weight].keys() == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("zero", ["weight", "gradient"])
def test_a_ratio_that_is_not_defined_is_1(zero: str) -> None:
    torch.manual_seed(0)
    module = Weights()
    if zero == "weight":
        nn.init.zeros_(module.out)
    optimizer, wanted = made(module), Restated(module.out)
    give_gradients(module)
    module.out.grad.mul_(float(zero != "gradient"))
    wanted.step(module.out.grad)
    optimizer.step()
    assert torch.isfinite(module.out).all()
    assert torch.allclose(module.out.double(), wanted.weight, atol=1e-7)


def test_an_update_that_is_left_out_on_the_device_never_happened() -> None:
    torch.manual_seed(0)
    modules = [Weights() for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    one, other = map(made, modules)
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


def test_gradients_are_divided_and_copies_written() -> None:
    torch.manual_seed(0)
    modules = [Weights() for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    one, other = map(made, modules)
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
