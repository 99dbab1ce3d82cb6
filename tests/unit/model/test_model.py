"""What the model is made of, and how it starts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from megatron.core import tensor_parallel
from torch import nn

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.layer import padded
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import ModelConfig, load
from gpt1_ds.engine.optimizer import layer_groups, parameter_groups
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.model import dropout, names
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.names import initial_value
from gpt1_ds.model.transformer import Block
from gpt1_ds.objectives.base import row_facts
from tools.families import FAMILIES


@pytest.fixture(scope="module")
def encoder() -> DenseModel:
    arguments = [*FAMILIES["bert"], "model.width=16", "model.context=8", "objective.next_sentence=false"]
    config = load([], [*arguments, "data.text=windows"])
    model = DenseModel(config, 300, TensorParallel(connect_alone()))
    for parameter in model.parameters():
        value = initial_value(names.info(parameter), 1)
        parameter.data[: len(value)] = value
    return model


@pytest.fixture(scope="module")
def model() -> DenseModel:
    return DenseModel(load([], ["model.layers=3"]), 300, TensorParallel(connect_alone()))


def test_every_product_is_megatrons(model: DenseModel) -> None:
    kinds = (
        tensor_parallel.ColumnParallelLinear,
        tensor_parallel.RowParallelLinear,
        tensor_parallel.VocabParallelEmbedding,
    )
    products = [m for m in model.modules() if isinstance(m, kinds)]
    assert len(products) == 3 * 4 + 2, "four matrices a block, the embedding and the head"
    held = {id(p) for m in products for p in m.parameters(recurse=False)}
    matrices = [names.info(p).name for p in model.parameters() if p.ndim > 1 and id(p) not in held]
    assert matrices == ["positions.weight"]
    assert not [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Embedding))]


def test_every_parameter_is_labelled_once(model: DenseModel) -> None:
    labels = [names.info(p).name for p in model.parameters()]
    assert len(labels) == len(set(labels)) == 2 + 3 * 12


def test_padding_is_zero_and_never_wins(model: DenseModel) -> None:
    assert model.tokens.weight.shape == (384, 64)
    assert names.info(model.tokens.weight).shape == (300, 64)
    logits = model.eval().logits(torch.zeros(4, 1, dtype=torch.int64))
    assert logits.shape == (4, 1, 384)
    assert torch.isinf(logits[..., 300:]).all()
    assert torch.isfinite(logits[..., :300]).all()
    assert [padded(40478, 128, size) for size in (1, 2, 4, 8)] == [40576] * 4
    assert padded(256, 128, 6) % 6 == 0


def test_padding_of_the_masked_heads_bias_never_learns(encoder: DenseModel) -> None:
    bias = encoder.heads["masked_head"].bias
    assert bias.shape == (384,)
    tokens_SB, at_MB = torch.arange(8).reshape(4, 2), torch.tensor([[0, 1], [2, 3]])
    facts_BF = torch.tensor([[5, 4, 2], [6, 3, 3]])
    loss = encoder.train()(tokens_SB, facts_BF, at_MB, torch.tensor([[3, 299], [0, 7]]), torch.full((2, 2), 0.25))
    loss.backward()
    assert bias.grad is not None
    assert (bias.grad[:300] != 0).all()
    assert not bias.grad[300:].any()
    assert not encoder.tokens.weight.grad[300:].any()
    logits = encoder.eval().logits(tokens_SB, facts_BF)
    assert torch.isinf(logits[..., 300:]).all()


def test_an_encoder_has_no_caches(encoder: DenseModel) -> None:
    with pytest.raises(ConfigError, match=r"model\.mask=bidirectional has no caches"):
        encoder.caches()


def test_all_embeddings_decay_and_the_masked_heads_bias_does_not(encoder: DenseModel) -> None:
    """Published code leaves out biases and norms by name: the same parameters."""
    decays, stays = ({names.info(p).name for p in group["params"]} for group in parameter_groups(encoder, 0.01))
    assert {"segments.weight", "positions.weight", "tokens.weight", "masked.dense.weight"} <= decays
    assert "masked.bias" in stays
    assert all(name.endswith(".bias") or "norm" in name for name in stays)


def test_lower_layers_have_lower_rates(encoder: DenseModel) -> None:
    """BEiT's: decay^(blocks + 1 - level), of embeddings level 0, of block i level i + 1, of the rest no decay."""
    blocks = sum(isinstance(layer, Block) for layer in encoder.layers)
    plain = parameter_groups(encoder, 0.01)
    groups = layer_groups(plain, 0.5, blocks)
    scales = {names.info(p).name: group["lr_scale"] for group in groups for p in group["params"]}
    decays = [
        {names.info(p).name: group["weight_decay"] for group in some for p in group["params"]}
        for some in (plain, groups)
    ]
    assert decays[0] == decays[1]
    assert scales.keys() == {names.info(p).name for p in encoder.parameters()}
    for name, scale in scales.items():
        level = blocks + 1
        if name.startswith("blocks."):
            level = int(name.split(".")[1]) + 1
        elif name.split(".")[0] in ("tokens", "positions", "segments", "embedding_norm"):
            level = 0
        assert scale == 0.5 ** (blocks + 1 - level), name
    assert {1.0, 0.5, 0.5 ** (blocks + 1)} <= set(scales.values())


def drawn(name: str, seed: int = 1, **part: int) -> torch.Tensor:
    info = names.ParameterInfo.whole(architecture(ModelConfig(), 300).parameters[name])
    return initial_value(replace(info, **part), seed)


def test_initial_values_are_by_name_and_the_same_in_every_cut() -> None:
    whole = drawn("blocks.0.mlp.down.weight")
    assert whole.shape == (64, 256)
    assert abs(float(whole.std()) - 0.02) < 5e-4
    cut = drawn("blocks.0.mlp.down.weight", start=128, stop=192)
    assert torch.equal(cut, whole[:, 128:192])
    assert not torch.equal(drawn("blocks.1.mlp.down.weight"), whole)
    assert not torch.equal(drawn("blocks.0.mlp.down.weight", seed=2), whole)
    assert torch.equal(drawn("blocks.0.mlp_norm.weight"), torch.ones(64))
    assert torch.equal(drawn("blocks.0.mlp_norm.bias"), torch.zeros(64))
    tokens = drawn("tokens.weight", start=100)
    assert tokens.shape == (200, 64)
    assert np.isfinite(tokens.numpy()).all()


def test_fused_attention_depends_on_step_row_and_layer() -> None:
    config = load(
        [], ["model.layers=2", "model.attention=fused", "model.residual_dropout=0", "model.embedding_dropout=0"]
    )
    model = DenseModel(config, 300, TensorParallel(connect_alone())).train()
    tokens = torch.arange(8).unsqueeze(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1)

    def logits(step: int, row: int) -> torch.Tensor:
        keys = dropout.row_keys(1, step, np.array([row]))
        return model.logits(tokens, torch.from_numpy(row_facts(keys)))[..., :300]

    assert torch.equal(logits(1, 0), logits(1, 0))
    assert not torch.equal(logits(1, 0), logits(2, 0))
    assert not torch.equal(logits(1, 0), logits(1, 1))


@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
def test_padding_moves_no_dropout_mask(mask: str) -> None:
    """One process pads this row to 12 positions; with parallel.sequence, 8 tensor-parallel ranks to 16, 12 to 24."""
    config = load([], ["model.context=32", "model.residual_dropout=0.3", "model.attention_dropout=0.3"])
    config = replace(config, model=replace(config.model, mask=mask))
    model = DenseModel(config, 300, TensorParallel(connect_alone())).train()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    tokens_S1, length_1 = torch.randint(300, (24, 1)), np.array([11])
    facts = torch.from_numpy(row_facts(dropout.row_keys(1, 2, np.array([7])), (length_1, length_1)))
    one, *others = (model.hidden(tokens_S1[:padded], facts)[:11] for padded in (12, 16, 24))
    for other in others:
        torch.testing.assert_close(other, one, rtol=0, atol=1e-5)
    assert not torch.allclose(model.eval().hidden(tokens_S1[:12], facts)[:11], one, atol=0.1)
