"""A model of transformers with random weights, the same one as a model of ours, and one batch for both.

Shapes: B rows, S positions, M positions that are predicted, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint.whole import whole_model
from gpt1_ds.config import Config, load
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.interop.families.family import Family
from gpt1_ds.interop.families.registry import FAMILIES
from gpt1_ds.interop.families.rules import Facts
from gpt1_ds.interop.imported import our_weights
from gpt1_ds.model import names
from gpt1_ds.model.build import DenseModel
from gpt1_ds.objectives.base import row_facts
from tests.helpers.foreign import SMALL

NO_DROPOUT = [f"model.{kind}_dropout=0" for kind in ("residual", "embedding", "attention")]
VOCABULARY = 1000
PAD = 1
POSITIONS = 40  # of a batch for an export
CONTEXT = 160  # of a random encoder
GPT2 = replace(SMALL, norm="pre", init="residual", ffn=96, norm_eps=1e-6)
ENCODER: dict[str, Any] = {"embedding_dropout": 0.2, "mask": "bidirectional", "embedding_norm": True, "head": "masked"}
BERT = replace(SMALL, **ENCODER, segments=2, activation="gelu_tanh", norm_eps=1e-12)
ROBERTA = replace(SMALL, **ENCODER, activation="gelu")


@dataclass(frozen=True)
class Pair:
    """The same model twice."""

    theirs: Any
    ours: DenseModel
    family: Family
    facts: Facts
    shapes: Mapping[str, tuple[int, ...]]

    def in_our_shape(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors under their names, such as gradients, under ours."""
        short = {self.family.short(name): value for name, value in theirs.items()}
        return our_weights(self.family, short, self.shapes, self.facts)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {names.info(parameter).name: parameter for parameter in self.ours.parameters()}


def pair(name: str, preset: str, head: HeadSpec | None = None, layers: int | None = 2) -> Pair:
    """transformers' class `name` at the width of our `preset`, and DenseModel; `layers` None: at full size."""
    overrides = [*NO_DROPOUT, *([f"model.layers={layers}", f"model.vocab_size={VOCABULARY}"] if layers else [])]
    config: Config = load([f"model/{preset}"], overrides)
    model = config.model
    assert model.vocab_size is not None
    family = next(one for one in FAMILIES if not list(one.problems(model)))
    if head is not None and head.reads_tokens:
        family = family.with_token_head(head.kind)
    settings = {**family.write_config(model, PAD), "pad_token_id": PAD, "attn_implementation": "eager"}
    torch.manual_seed(0)
    number = {} if head is None else {"num_labels": head.outputs}
    theirs: Any = getattr(transformers, name)(
        getattr(transformers, f"{family.stem}Config")(**settings, **number, classifier_dropout=0.0)
    ).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # biases and gains away from 0 and 1, so that each one matters
            parameter.add_(torch.randn_like(parameter) * 0.02)
    if family.model_type == "roberta":  # ours has the row of the only segment in its positions
        embeddings = theirs.roberta.embeddings
        segment_1D = embeddings.token_type_embeddings.weight.requires_grad_(False)
        with torch.no_grad():
            embeddings.position_embeddings.weight += segment_1D
            segment_1D.zero_()
    facts = Facts(model.heads, PAD + 1 if family.model_type == "roberta" else 0)
    shapes = architecture(model, model.vocab_size, head).shapes
    if head is not None and head.kind == "linear":
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith("head.")}
    elif head is not None and not head.lm_coefficient:
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith("masked.")}
    state = {family.short(name): value for name, value in theirs.state_dict().items()}
    weights = our_weights(family, state, shapes, facts)
    return Pair(theirs, whole_model(config, lambda info: weights[info.name], head), family, facts, shapes)


@dataclass(frozen=True)
class Rows:
    """Token ids of short and full rows; some of them in two segments."""

    tokens_BS: Tensor
    length_B: Tensor
    second_B: Tensor

    @property
    def is_real(self) -> Tensor:
        return torch.arange(self.tokens_BS.shape[1]) < self.length_B[:, None]

    def theirs(self, segments: bool) -> dict[str, Tensor]:
        second_BS = torch.arange(self.tokens_BS.shape[1]) >= self.second_B[:, None]
        kinds = {"token_type_ids": (second_BS & self.is_real).long()} if segments else {}
        padded_BS = torch.where(self.is_real, self.tokens_BS, PAD)
        return {"input_ids": padded_BS, "attention_mask": self.is_real.long(), **kinds}

    def ours(self) -> tuple[Tensor, Tensor]:
        """(token ids [S, B], facts [B, 3])."""
        keys_B = np.zeros(len(self.length_B), dtype=np.int64)
        facts_BF = torch.from_numpy(row_facts(keys_B, (self.length_B.numpy(), self.second_B.numpy())))
        return self.tokens_BS.T.contiguous(), facts_BF


def rows(positions: int = 40) -> Rows:
    draw = np.random.default_rng(0)
    tokens_BS = torch.from_numpy(draw.integers(PAD + 1, VOCABULARY, (3, positions)))
    length_B = torch.tensor([positions, positions * 2 // 3, positions // 2])
    return Rows(tokens_BS, length_B, torch.tensor([positions // 2, positions // 3, positions // 2]))


def masked_labels(batch: Rows, each: int = 5) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """(their labels [B, S], -100 where nothing is predicted; ours: places, ids and weights [M, B])."""
    draw = np.random.default_rng(1)
    at_BM = torch.stack([torch.from_numpy(draw.permutation(int(length))[:each]) for length in batch.length_B])
    ids_BM = torch.from_numpy(draw.integers(PAD + 1, VOCABULARY, at_BM.shape))
    labels_BS = torch.full_like(batch.tokens_BS, -100).scatter(1, at_BM, ids_BM)
    return labels_BS, (at_BM.T.contiguous(), ids_BM.T.contiguous(), torch.full(at_BM.T.shape, 1 / at_BM.numel()))


def batch(first: int = 10) -> Rows:
    tokens_BS = torch.from_numpy(np.random.default_rng(1).integers(first, 500, (2, POSITIONS)))
    return Rows(tokens_BS, torch.tensor([POSITIONS, 30]), torch.tensor([20, 12]))


def theirs_of(folder: Path, name: str) -> Any:
    model, report = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def random_encoder(name: str, tokenizer: Path, folder: Path, seed: int = 0, **settings: Any) -> Any:
    """transformers' class `name` of BERT or RoBERTa for the ids of `tokenizer`, random weights, and its folder."""
    vocabulary = load_tokenizer(tokenizer)
    pad = vocabulary.special_ids.require("pad", "a test")
    roberta = {"max_position_embeddings": CONTEXT + pad + 1, "type_vocab_size": 1}
    sizes = {
        **{"vocab_size": vocabulary.vocab_size, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"intermediate_size": 64, "max_position_embeddings": CONTEXT, "layer_norm_eps": 1e-5, "pad_token_id": pad},
        **(roberta if "Roberta" in name else {}),
    }
    config = getattr(transformers, f"{name.partition('For')[0]}Config")(**sizes, **settings)
    torch.manual_seed(seed)
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return model
