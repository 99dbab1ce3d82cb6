"""Muon's update against a restatement of its definition, and against torch's own where that computes the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.layer import Matrices
from gpt1_ds.config import load
from gpt1_ds.config.sections import OptimizerConfig
from gpt1_ds.engine.muon import Muon, assign_owners, orthogonalise, update_direction
from gpt1_ds.engine.optimizer import make_optimizer
from gpt1_ds.model.names import ParameterInfo
from tests.helpers.optimizers import WEIGHTS, Weights, connected, give_gradients, split
from tools.families import FAMILIES

RATE, DECAY = 0.02, 0.1


def made(module: nn.Module) -> Muon:
    optimizer = make_optimizer(module, OptimizerConfig(name="muon", lr=RATE, weight_decay=DECAY))
    assert isinstance(optimizer, Muon)
    return connected(optimizer, module)


def by_singular_values(matrix: Tensor) -> Tensor:
    """What five steps of the iteration make of each singular value, in fp64."""
    u, values, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return u @ values.diag() @ v


@pytest.mark.parametrize("shape", [(7, 7), (5, 19), (31, 6)])
def test_newton_schulz_maps_singular_values_and_nothing_else(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    found = orthogonalise(matrix)
    assert torch.allclose(found.double(), by_singular_values(matrix), atol=1e-5)
    assert torch.linalg.svdvals(found).sub(1).abs().max() < 0.5
    assert orthogonalise(torch.zeros(shape)).abs().max() == 0


def test_updates_are_those_of_the_definition() -> None:
    torch.manual_seed(0)
    module = Weights()
    optimizer = made(module)
    wanted = {name: split(name, p.detach().double()) for name, p in module.named_parameters() if WEIGHTS[name][1]}
    means = {name: {part: torch.zeros_like(p) for part, p in parts.items()} for name, parts in wanted.items()}
    for _ in range(4):
        give_gradients(module)
        for name, parts in wanted.items():
            for part, gradient in split(name, getattr(module, name).grad.double()).items():
                means[name][part] = mean = 0.95 * means[name][part] + 0.05 * gradient
                along = by_singular_values(0.05 * gradient + 0.95 * mean) * 0.2 * math.sqrt(max(mean.shape))
                parts[part] = parts[part] - RATE * (along + DECAY * parts[part])
        optimizer.step()
    for name, parts in wanted.items():
        for part, found in split(name, getattr(module, name).detach().double()).items():
            assert torch.allclose(found, parts[part], atol=1e-5), (name, part)
        assert optimizer.state[getattr(module, name)].keys() == {"step", "exp_avg"}


def test_it_is_torchs_muon_but_for_what_that_rounds_to_bf16() -> None:
    torch.manual_seed(0)
    module = Weights()
    theirs = nn.Parameter(module.out.detach().clone())
    arguments: dict[str, Any] = {"lr": RATE, "weight_decay": DECAY, "momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"}
    other, optimizer, before = torch.optim.Muon([theirs], **arguments), made(module), theirs.detach().clone()
    for _ in range(3):
        give_gradients(module)
        theirs.grad = module.out.grad.clone()
        optimizer.step()
        other.step()
    assert (module.out - theirs).norm() < 0.02 * (theirs - before).norm()


def test_tables_and_vectors_have_adamws_update() -> None:
    torch.manual_seed(0)
    module, other = Weights(), Weights()
    other.load_state_dict(module.state_dict())
    ours, adamw = made(module), make_optimizer(other, OptimizerConfig(lr=RATE, weight_decay=DECAY))
    for _ in range(3):
        give_gradients(module, other)
        ours.step()
        adamw.step()
    assert torch.equal(module.table, other.table)
    assert torch.equal(module.norm, other.norm)
    assert not torch.equal(module.out, other.out)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_weights_between_hidden_states_are_matrices(family: str) -> None:
    config = load([], FAMILIES[family])
    for name, parameter in architecture(config.model, 500).parameters.items():
        inside = len(parameter.shape) == 2 and any(part in name for part in ("attention.", "cross.", "mlp."))
        assert (parameter.matrices is not None) == inside, name
        if parameter.matrices is not None:
            pieces = {"qkv": 3, "kv": 2, "up": 1 + config.model.gated}.get(name.split(".")[-2], 1)
            assert parameter.matrices.count == pieces, name
            assert parameter.shape[0] % (pieces * parameter.matrices.rows) == 0


def test_fused_matrices_are_orthogonal_by_themselves() -> None:
    torch.manual_seed(0)
    whole = torch.randn(24, 8)
    scaled = whole.view(2, 3, 4, 8).clone()
    scaled[:, 1] *= 1000.0  # keys
    plain, large = (update_direction(weight.reshape(24, 8), Matrices(3, 4)) for weight in (whole, scaled))
    assert torch.allclose(plain, large, atol=1e-5), "their size does not matter, nor to queries and values"


@pytest.mark.parametrize("ranks", [1, 2, 4, 5])
def test_owners_share_the_work(ranks: int) -> None:
    weights = [one for one in architecture(load([], ["model.layers=8"]).model, 500).parameters.values() if one.matrices]
    infos = [ParameterInfo.whole(one) for one in weights]
    found = assign_owners(infos, ranks)
    assert found == assign_owners(reversed(infos), ranks), "whatever order they are in"
    work = [0] * ranks
    for one in weights:
        work[found[one.name]] += one.shape[0] * one.shape[1] * min(one.shape)
    assert max(work) < 1.3 * sum(work) / ranks
