"""Our parameters as transformers names and shapes them, and back, bit for bit.

    tokens.weight                    tokens_embed.weight
    positions.weight                 positions_embed.weight
    blocks.I.attention.qkv           h.I.attn.c_attn      [D, 3 D], columns [3, N, H]; ours [3 D, D], rows [N, 3, H]
    blocks.I.attention.out           h.I.attn.c_proj      [in, out]; ours [out, in], as for the two below
    blocks.I.mlp.{up,down}           h.I.mlp.{c_fc,c_proj}
    blocks.I.{attention,mlp}_norm    h.I.{ln_1,ln_2}

The release of 2018 has the same matrices with a leading 1: [1, in, out]. D width, N heads, H head width.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig

_TOP = {"tokens.weight": "tokens_embed.weight", "positions.weight": "positions_embed.weight"}
_PARTS = {
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "attention_norm": "ln_1",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
    "mlp_norm": "ln_2",
}
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)\.(weight|bias)")


def their_name(name: str) -> str:
    """transformers' name for a canonical one, without the prefix `transformer.`."""
    if name in _TOP:
        return _TOP[name]
    match = _BLOCK.fullmatch(name)
    assert match is not None, f"{name} is not a canonical name"
    return f"h.{match[1]}.{_PARTS[match[2]]}.{match[3]}"


def to_theirs(name: str, value: Tensor, heads: int) -> Tensor:
    """A parameter of ours as theirs: queries, keys and values one after the other, matrices as [in, out]."""
    if ".qkv." in name:
        value = value.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
    return (value.T if _is_matrix(name) else value).contiguous()


def from_theirs(name: str, value: Tensor, heads: int) -> Tensor:
    """The inverse of `to_theirs`."""
    value = value.T if _is_matrix(name) else value
    if ".qkv." in name:
        value = value.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)
    return value.contiguous()


def check_shapes(theirs: Mapping[str, tuple[int, ...]], model: ModelConfig, origin: str) -> None:
    """Hold the shapes under transformers' names against the configuration, before anything is read.

    Raises CheckpointError, naming what is missing, unknown or of another shape.
    """
    shapes = _shapes(model).items()
    wanted = {their_name(name): shape[::-1] if _is_matrix(name) else shape for name, shape in shapes}
    problems = [f"{origin}: has no {name}" for name in sorted(wanted.keys() - theirs.keys())]
    problems += [f"{origin}: {name!r:.80} is no part of GPT-1" for name in sorted(theirs.keys() - wanted.keys())]
    problems += [
        f"{origin}: {name} is {list(theirs[name])}, the configuration says {list(shape)}"
        for name, shape in wanted.items()
        if theirs.get(name, shape) != shape
    ]
    if problems:
        more = f" (and {len(problems) - 1} more like it)" if len(problems) > 1 else ""
        raise CheckpointError(problems[0] + more)


def our_weights(theirs: Mapping[str, Tensor], model: ModelConfig) -> dict[str, Tensor]:
    """Canonical name -> value, from tensors under transformers' names whose shapes were checked."""
    return {name: from_theirs(name, theirs[their_name(name)], model.heads) for name in _shapes(model)}


def _shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    assert model.vocab_size is not None, "imports know their vocabulary size"
    return architecture(model, model.vocab_size).shapes


def _is_matrix(name: str) -> bool:
    return name.startswith("blocks.") and name.endswith(".weight") and "norm" not in name
