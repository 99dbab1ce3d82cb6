"""The update of GPT-1's published code against a restatement in float64, and what decays."""

import math

import pytest
import torch

from gpt1_ds.config.optimizer import OptimizerConfig
from gpt1_ds.parallel.optimizer import make_optimizer, parameter_groups


def test_adam2018_equals_the_published_update() -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(5, 3)
    settings = OptimizerConfig(name="adam2018", lr=0.01, weight_decay=0.1, eps=1e-3)
    optimizer = make_optimizer(module, settings)
    wanted = {name: p.detach().double() for name, p in module.named_parameters()}
    m = {name: torch.zeros_like(p) for name, p in wanted.items()}
    v = {name: torch.zeros_like(p) for name, p in wanted.items()}
    for t in range(1, 30):
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter)
        for name, parameter in module.named_parameters():
            g = parameter.grad.double()
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g * g
            rate = 0.01 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            decay = 0.1 * wanted[name] if parameter.ndim > 1 else 0.0
            wanted[name] = wanted[name] - rate * (m[name] / (v[name].sqrt() + 1e-3) + decay)
        optimizer.step()
    for name, parameter in module.named_parameters():
        assert torch.allclose(parameter.double(), wanted[name], atol=1e-6), name


@pytest.mark.parametrize("name", ["adamw", "adam2018"])
def test_matrices_decay_and_the_rest_does_not(name: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    groups = parameter_groups(module, 0.5)
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.5), (3, 0.0)]
    before = {key: p.detach().clone() for key, p in module.named_parameters()}
    optimizer = make_optimizer(module, OptimizerConfig(name=name, lr=0.1, weight_decay=0.5))  # type: ignore[arg-type]
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moved = {key: not torch.equal(p, before[key]) for key, p in module.named_parameters()}
    assert moved == {"0.weight": True, "0.bias": False, "1.weight": False, "1.bias": False}
