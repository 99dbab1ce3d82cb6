"""The update of GPT-1's published code against a restatement in float64, and what decays."""

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpt1_ds.config.sections import OptimizerConfig
from gpt1_ds.engine import adamw
from gpt1_ds.engine.optimizer import make_optimizer, parameter_groups


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


@pytest.mark.parametrize("name", ["adamw", "adam2018"])
@pytest.mark.parametrize("scale", [None, 1.0, 2.5])
def test_an_update_has_the_same_bits_in_blocks_and_wherever_an_element_lies(
    name: str, scale: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole has 208 elements, which fill vectors; parts of it do not."""
    torch.manual_seed(0)
    values, places = torch.randn(208), [slice(0, 5), slice(5, 12), slice(12, 203), slice(203, 208)]
    whole = torch.nn.ParameterList([torch.nn.Parameter(values.clone())])
    parts = torch.nn.ParameterList([torch.nn.Parameter(values[place].clone()) for place in places])
    plain, ours = (make_optimizer(one, OptimizerConfig(name=name, lr=0.01)) for one in (whole, parts))  # type: ignore[arg-type]
    ours.shared = set(parts)
    ours.copies = {part: torch.empty(len(part), dtype=torch.bfloat16) for part in parts}
    for _ in range(3):
        gradient = torch.randn(208)
        whole[0].grad = gradient / (scale or 1.0)
        for part, place in zip(parts, places, strict=True):
            part.grad = gradient[place].clone()
        ours.grad_scale = None if scale is None else torch.tensor(scale)
        monkeypatch.setattr(adamw, "BLOCK", 1 << 19)
        plain.step()
        monkeypatch.setattr(adamw, "BLOCK", 64)
        ours.step()
        assert torch.equal(whole[0], torch.cat(list(parts)))
        for part, place in zip(parts, places, strict=True):
            assert torch.equal(ours.copies[part], part.detach().bfloat16())
            assert torch.equal(part.grad, gradient[place]), "it is left as it was"
    for key in adamw.MOMENTS:
        assert torch.equal(plain.state[whole[0]][key], torch.cat([ours.state[part][key] for part in parts])), key
    assert {float(ours.state[part]["step"]) for part in parts} == {3.0}


class Reads(TorchDispatchMode):
    """Counts the numbers that the host takes from tensors: on a GPU each waits for the device."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **(keywords or {}))


def resumed(optimizer: torch.optim.Optimizer, updates: int) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {"step": torch.tensor(float(updates))}
            optimizer.state[parameter].update({key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")})


def test_updates_of_adam2018_are_counted_on_the_host() -> None:
    module = torch.nn.Linear(5, 3)
    optimizer = make_optimizer(module, OptimizerConfig(name="adam2018", lr=0.01))
    reads = []
    for step in range(5):
        if step == 2:
            resumed(optimizer, 41)
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        with Reads() as mode:
            optimizer.step()
        reads.append(mode.count)
    assert reads == [0, 0, 2, 0, 0], "a state from a checkpoint is read once, for each parameter"
    assert [float(state["step"]) for state in optimizer.state.values()] == [44.0, 44.0]


@pytest.mark.parametrize("name", ["adamw", "adam2018"])
def test_an_update_that_the_kernel_leaves_out_never_happened(name: str) -> None:
    torch.manual_seed(0)
    modules = [torch.nn.Linear(5, 3) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    one, other = (make_optimizer(module, OptimizerConfig(name=name, lr=0.01)) for module in modules)  # type: ignore[arg-type]
    for step in range(4):
        gradients = [torch.randn_like(parameter) for parameter in modules[0].parameters()]
        for module in modules:
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
        one.found_inf = torch.tensor(float(step == 2))  # type: ignore[attr-defined]
        one.step()
        if step == 2:
            one.recount()  # type: ignore[attr-defined]
        else:
            other.step()
    for parameter, wanted in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        assert torch.equal(parameter, wanted)


def test_a_name_without_a_rule_is_no_adamw() -> None:
    settings = OptimizerConfig(name="lion")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="lion"):
        make_optimizer(torch.nn.Linear(5, 3), settings)
