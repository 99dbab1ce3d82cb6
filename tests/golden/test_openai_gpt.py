"""The same logits, loss and gradients as transformers' OpenAIGPTLMHeadModel, at GPT-1's full size with random
weights.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
import transformers

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.count import flops_per_token, parameters
from gpt1_ds.config import load
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.model import names
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.layers import TensorParallel

VOCABULARY = 40478


@pytest.fixture(scope="module")
def models() -> tuple[DenseModel, torch.nn.Module]:
    """Ours and theirs with the same random weights; dropout off."""
    logging.disable(logging.WARNING)
    config = load(["model/gpt1"], [f"model.{kind}_dropout=0" for kind in ("residual", "embedding", "attention")])
    torch.manual_seed(0)
    theirs = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig()).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # biases and gains away from 0 and 1, so that each one matters
            parameter.add_(torch.randn_like(parameter) * 0.02)
    ours = DenseModel(config, VOCABULARY, TensorParallel(connect_alone())).eval()
    state = theirs.state_dict()
    with torch.no_grad():
        for parameter in ours.parameters():
            value = _theirs(names.info(parameter).name, state)
            parameter[: len(value)] = value
    logging.disable(logging.NOTSET)
    return ours, theirs


def _theirs(name: str, state: dict[str, torch.Tensor]) -> torch.Tensor:
    """Their tensor for a canonical name, in our shape: transposed, query-key-value head by head."""
    top = {"tokens.weight": "tokens_embed.weight", "positions.weight": "positions_embed.weight"}
    if name in top:
        return state[f"transformer.{top[name]}"]
    _, layer, *middle, kind = name.split(".")
    part = {
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "attention_norm": "ln_1",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
        "mlp_norm": "ln_2",
    }[".".join(middle)]
    value = state[f"transformer.h.{layer}.{part}.{kind}"]
    value = value.T if value.ndim == 2 else value
    if part == "attn.c_attn":
        value = value.unflatten(0, (3, 12, 64)).transpose(0, 1).flatten(0, 2)
    return value


def test_parameter_count_is_exact(models: tuple[DenseModel, torch.nn.Module]) -> None:
    ours, theirs = models
    model = load(["model/gpt1"]).model
    built = {names.info(parameter).name: names.info(parameter).shape for parameter in ours.parameters()}
    assert built == architecture(model, VOCABULARY).shapes
    assert len(built) == 146
    assert sum(int(np.prod(shape)) for shape in built.values()) == 116_534_784 == parameters(model, VOCABULARY)
    assert sum(parameter.numel() for parameter in theirs.parameters()) == 116_534_784


def test_logits_loss_and_gradients_are_theirs(models: tuple[DenseModel, torch.nn.Module]) -> None:
    ours, theirs = models
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, VOCABULARY, (1, 513)))
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    wanted = theirs(inputs).logits
    found = ours.logits(inputs.T).transpose(0, 1)[..., :VOCABULARY]
    assert wanted.abs().max() > 3, "the logits are far from zero"
    assert (found - wanted).abs().max() <= 1e-5
    loss = torch.nn.functional.cross_entropy(wanted[0], labels[0])
    loss.backward()
    our_loss = ours(inputs.T, torch.zeros(1, 3, dtype=torch.int64), labels.T, torch.full((512, 1), 1 / 512))
    assert abs(float(our_loss) - float(loss)) <= 1e-5
    our_loss.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for parameter in ours.parameters():
        name = names.info(parameter).name
        want = _theirs(name, gradients)
        got = parameter.grad[: len(want)]
        if name.endswith("qkv.bias"):  # the key bias has no gradient but rounding
            want, got = want.unflatten(0, (12, 3, 64))[:, ::2], got.unflatten(0, (12, 3, 64))[:, ::2]
        assert (got - want).norm() / want.norm() <= 1e-4, name


def test_operations_are_what_torch_counts() -> None:
    """The closed formula against torch's own counter, which sees causal attention as a full square."""
    from torch.utils.flop_counter import FlopCounterMode

    config = load([], ["model.layers=2", "model.width=64", "model.context=128", "model.vocab_multiple=1"])
    model = DenseModel(config, 1000, TensorParallel(connect_alone())).eval()
    tokens = torch.zeros(128, 2, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.logits(tokens)
    forward = flops_per_token(config.model, 1000) / 3 * tokens.numel()
    assert counter.get_total_flops() == pytest.approx(forward, rel=1e-6)
