"""The same model as others have it: transformers' own, and a hand-written one. Both take (tokens [B, S], labels [B, S])
and return the mean cross-entropy.

Shapes: B rows, S positions, D width, N heads, H head width, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt1_ds.architecture.layer import padded
from gpt1_ds.config import Config, ModelConfig
from gpt1_ds.interop.families.openai_gpt import FAMILY
from gpt1_ds.interop.families.rules import Facts
from tools.bench.ours import Ours, give_weights, initial_weights


class Transformers(nn.Module):
    """transformers' OpenAIGPTLMHeadModel with the weights that our engine begins with."""

    def __init__(self, config: Config) -> None:
        from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

        super().__init__()
        model = config.model
        self.attention = "sdpa" if OpenAIGPTLMHeadModel._supports_sdpa else "eager"  # no version has had SDPA so far
        settings = OpenAIGPTConfig(**FAMILY.write_config(model, 0), attn_implementation=self.attention)
        self.model: Any = OpenAIGPTLMHeadModel(settings)
        missing = give_weights(self.model, FAMILY, config, Facts(model.heads))
        assert missing <= {"lm_head.weight"}, missing  # tied

    def logits(self, tokens_BS: Tensor) -> Tensor:
        return self.model(tokens_BS).logits  # type: ignore[no-any-return]

    def forward(self, tokens_BS: Tensor, labels_BS: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(tokens_BS).float().flatten(0, 1), labels_BS.flatten())


class Plain(nn.Module):
    """GPT-1 in the manner of nanoGPT, post-LayerNorm, its vocabulary padded like ours; attention by SDPA or, where SDPA
    has no kernel with dropout, as its softmax is written down.
    """

    def __init__(self, config: Config, attention: str = "sdpa") -> None:
        super().__init__()
        model = config.model
        assert model.vocab_size is not None, "it is known here"
        self.vocab_size = model.vocab_size
        rows = padded(model.vocab_size, model.vocab_multiple, 1)
        self.tokens = nn.Embedding(rows, model.width)
        self.positions = nn.Embedding(model.context, model.width)
        self.drop = nn.Dropout(model.embedding_dropout)
        self.blocks = nn.ModuleList(PlainBlock(model, attention) for _ in range(model.layers))
        nn.init.zeros_(self.tokens.weight)
        parameters = dict(self.named_parameters())
        with torch.no_grad():
            for name, value in initial_weights(config).items():
                if ".qkv." in name:  # queries, keys and values one after the other
                    value = value.unflatten(0, (model.heads, 3, -1)).transpose(0, 1).flatten(0, 2)
                parameters[name][: len(value)].copy_(value)

    def logits(self, tokens_BS: Tensor) -> Tensor:
        positions_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
        x_BSD = self.drop(self.tokens(tokens_BS) + self.positions(positions_S))
        for block in self.blocks:
            x_BSD = block(x_BSD)
        return F.linear(x_BSD, self.tokens.weight)[..., : self.vocab_size]

    def forward(self, tokens_BS: Tensor, labels_BS: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(tokens_BS).float().flatten(0, 1), labels_BS.flatten())


class PlainAttention(nn.Module):
    def __init__(self, model: ModelConfig, attention: str) -> None:
        super().__init__()
        self.qkv = nn.Linear(model.width, 3 * model.width)
        self.out = nn.Linear(model.width, model.width)
        self.heads, self.kind, self.probability = model.heads, attention, model.attention_dropout
        causal_SS = torch.ones(model.context, model.context, dtype=torch.bool).tril()
        self.register_buffer("causal_SS", causal_SS, persistent=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        qkv = self.qkv(x_BSD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # 3 B N S H
        q_BNSH, k_BNSH, v_BNSH = qkv.unbind(0)
        probability = self.probability if self.training else 0.0
        if self.kind == "sdpa":
            y_BNSH = F.scaled_dot_product_attention(q_BNSH, k_BNSH, v_BNSH, dropout_p=probability, is_causal=True)
        else:
            scores_BNSS = q_BNSH @ k_BNSH.transpose(-2, -1) / math.sqrt(q_BNSH.shape[-1])
            future_SS = ~self.causal_SS[: x_BSD.shape[1], : x_BSD.shape[1]]  # type: ignore[index]
            weights_BNSS = scores_BNSS.masked_fill(future_SS, -math.inf).softmax(-1)
            y_BNSH = F.dropout(weights_BNSS, probability) @ v_BNSH
        return self.out(y_BNSH.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class PlainMlp(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(model.width, model.ffn_width)
        self.down = nn.Linear(model.ffn_width, model.width)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BSD), approximate="tanh"))  # type: ignore[no-any-return]


class PlainBlock(nn.Module):
    def __init__(self, model: ModelConfig, attention: str) -> None:
        super().__init__()
        self.attention, self.mlp = PlainAttention(model, attention), PlainMlp(model)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(model.width), nn.LayerNorm(model.width)
        self.drop = nn.Dropout(model.residual_dropout)

    def forward(self, x_BSD: Tensor) -> Tensor:
        n_BSD = self.attention_norm(x_BSD + self.drop(self.attention(x_BSD)))
        return self.mlp_norm(n_BSD + self.drop(self.mlp(n_BSD)))  # type: ignore[no-any-return]


@torch.no_grad()
@torch.compiler.set_stance("force_eager")  # graphs for evaluation would never be used again
def compare(ours: Ours, peer: Transformers | Plain, autocast: bool) -> dict[str, float]:
    """Before training and without dropout: both losses of the first batch, which agree within 2e-2, and how far the
    logits of its first row are apart, relative to their size, which is at most 5e-2.
    """
    device = ours.engine.device
    mine = ours.engine.evaluate(ours.text.ours(0))
    first = ours.text.ours(0)[0]
    my_logits_SV = ours.engine.module.logits(first.inputs[0][:, :1].to(device), first.inputs[1][:1].to(device))[:, 0]
    peer.eval()
    with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        batches = [[part.to(device) for part in batch] for batch in ours.text.plain(0)]
        theirs = float(torch.stack([peer(*batch) for batch in batches]).mean())
        their_logits_SV = peer.logits(batches[0][0][:1])[0].float()
    peer.train()
    off = my_logits_SV[:, : their_logits_SV.shape[1]].float() - their_logits_SV
    distance = float(off.norm() / their_logits_SV.norm())
    assert abs(mine - theirs) < 2e-2, (mine, theirs)
    assert distance < 5e-2, distance
    return {"our loss": mine, "their loss": theirs, "logits apart": distance}
