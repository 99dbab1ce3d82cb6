"""Update rules, as torch optimizers that DeepSpeed wraps: which one, and what of it each parameter gets.

Weight decay is decided per parameter before ZeRO flattens anything: inside ZeRO every tensor is one-dimensional.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

import torch
from torch import nn

from gpt1_ds.config.sections import OptimizerConfig
from gpt1_ds.engine.adamw import Adam2018, AdamW
from gpt1_ds.engine.muon import Muon
from gpt1_ds.engine.whole_parameters import Adafactor, Lamb
from gpt1_ds.model import names


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices and embeddings decay, biases and gains do not: the rule of GPT-1's code (more than one dimension)."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def layer_groups(groups: Iterable[dict[str, Any]], decay: float, blocks: int) -> list[dict[str, Any]]:
    """Returns the same groups, cut by the level of their parameters. `lr_scale` multiplies the learning rate: decay^k,
    k levels below the head (Clark et al. 2020, ELECTRA; with one level above the last block as in Bao et al. 2022,
    BEiT).
    """
    cut = []
    for group in groups:
        levels: dict[int, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            level = names.info(parameter).level
            levels.setdefault(blocks + 1 if level is None else level, []).append(parameter)
        for level, held in sorted(levels.items()):
            cut.append({**group, "params": held, "lr_scale": decay ** (blocks + 1 - level)})
    return cut


def freeze(module: nn.Module, layers: int) -> None:
    """Keeps the embeddings and the first `layers` blocks as they are: their gradients become 0, so that they are no
    part of the norm, and `frozen_groups` gives them no rate and no decay. The backward pass still goes through them,
    because the first stage of a pipeline has to send and receive what the schedule expects of it.
    """
    for parameter in module.parameters():
        if _is_frozen(parameter, layers):
            parameter.register_hook(torch.zeros_like)


def frozen_groups(groups: Iterable[dict[str, Any]], layers: int) -> list[dict[str, Any]]:
    """Returns the same groups, parameters that `freeze` keeps apart from the others."""
    cut = []
    for group in groups:
        for frozen in (True, False):
            held = [parameter for parameter in group["params"] if _is_frozen(parameter, layers) == frozen]
            if held:
                cut.append({**group, "params": held, **({"weight_decay": 0.0, "lr_scale": 0.0} if frozen else {})})
    return cut


def _is_frozen(parameter: nn.Parameter, layers: int) -> bool:
    level = names.info(parameter).level
    return level is not None and level <= layers


def muon_groups(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the same groups, matrices of blocks apart from all else: those are `orthogonal`."""
    cut = []
    for group in groups:
        for orthogonal in (True, False):
            held = [p for p in group["params"] if (names.info(p).matrices is not None) == orthogonal]
            if held:
                cut.append({**group, "params": held, "orthogonal": orthogonal})
    return cut


def make_optimizer(module: nn.Module, settings: OptimizerConfig, blocks: int = 0, frozen: int | None = None) -> AdamW:
    """Returns that of a module which holds part of a model of so many `blocks`, of which the first are `frozen`."""
    arguments: dict[str, Any] = {"lr": settings.lr, "betas": tuple(settings.betas), "eps": settings.eps}
    groups = parameter_groups(module, settings.weight_decay)
    if settings.layer_decay != 1:
        groups = layer_groups(groups, settings.layer_decay, blocks)
    if frozen is not None:
        freeze(module, frozen)
        groups = frozen_groups(groups, frozen)
    if settings.name == "muon":
        return Muon(muon_groups(groups), momentum=settings.momentum, **arguments, fused=True)
    if settings.name == "lamb":
        return Lamb(groups, **arguments, fused=True)
    if settings.name == "adafactor":
        return Adafactor(groups, settings.lr, settings.parameter_scale)
    if settings.name == "adam2018":
        return Adam2018(groups, **arguments)
    if settings.name == "adamw":
        return AdamW(groups, **arguments, fused=True)  # fused is one pass over memory and needs no compiler
    assert_never(settings.name)
