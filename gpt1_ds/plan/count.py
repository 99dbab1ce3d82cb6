"""Parameters and floating-point operations, by formula.

Conventions for operations per trained token (forward + backward = 3 x forward, multiply and add counted apart):

    PaLM      6 N + 12 L T D        N = weights used in matrix products (embedding once, as the head); nanoGPT's too
    Megatron  6 N + 6 L T D         attention counted for the causal half only

L layers, T context, D width. Recomputation is not counted: these are model, not hardware, operations.
"""

from __future__ import annotations

import math

from gpt1_ds.config import ModelConfig

CHUNK_BYTES = {"cpu": 96 << 20, "cuda": 1 << 30}  # about the most that a chunk's logits may take
TILE = 128  # tokens, of which matrix products like whole multiples


def padded_vocabulary(vocab_size: int, multiple: int, tensor_size: int) -> int:
    """Embedding rows: the smallest number >= vocab_size that `multiple` and the tensor-parallel size both divide."""
    step = math.lcm(multiple, tensor_size)
    return -(-vocab_size // step) * step


def parameter_shapes(model: ModelConfig, vocab_size: int, outputs: int = 0) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every parameter, without vocabulary padding; `outputs` are those of a task's head."""
    body = _lstm_shapes(model) if model.kind == "lstm" else _gpt_shapes(model)
    head = {"head.weight": (outputs, model.width), "head.bias": (outputs,)}
    return {"tokens.weight": (vocab_size, model.width), **body, **(head if outputs else {})}


def _lstm_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    width, units = model.width, model.units
    return {
        "lstm.cell.weight_ih_l0": (4 * units, width),
        "lstm.cell.weight_hh_l0": (4 * units, units),
        "lstm.cell.bias_ih_l0": (4 * units,),
        "lstm.cell.bias_hh_l0": (4 * units,),
        "lstm.out.weight": (width, units),
        "lstm.out.bias": (width,),
    }


def _gpt_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    width, ffn = model.width, model.ffn_width
    shapes: dict[str, tuple[int, ...]] = {"positions.weight": (model.context, width)}
    linear = {
        "attention.qkv": (3 * width, width),
        "attention.out": (width, width),
        "mlp.up": (ffn, width),
        "mlp.down": (width, ffn),
    }
    for layer in range(model.layers):
        for name, (outputs, inputs) in linear.items():
            shapes[f"blocks.{layer}.{name}.weight"] = (outputs, inputs)
            shapes[f"blocks.{layer}.{name}.bias"] = (outputs,)
        for name in ("attention_norm", "mlp_norm"):
            shapes[f"blocks.{layer}.{name}.weight"] = (width,)
            shapes[f"blocks.{layer}.{name}.bias"] = (width,)
    return shapes


def parameters(model: ModelConfig, vocab_size: int) -> int:
    """All parameters, padding apart; GPT-1 has 116,534,784."""
    return sum(math.prod(shape) for shape in parameter_shapes(model, vocab_size).values())


def counts(model: ModelConfig, vocab_size: int) -> dict[str, int]:
    """N in the three conventions of the scaling literature: `all` parameters; `matrices_head`, the weights of matrix
    products with the head, as Hoffmann et al. (2022) count; `transformer`, the blocks alone (Kaplan et al. 2020).
    """
    shapes = parameter_shapes(model, vocab_size)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    blocks = sum(size for name, size in sizes.items() if name.startswith(("blocks.", "lstm.")))
    matrices = sum(size for name, size in sizes.items() if len(shapes[name]) > 1 and name != "positions.weight")
    return {"all": sum(sizes.values()), "matrices_head": matrices, "transformer": blocks}


def flops_per_token(model: ModelConfig, vocab_size: int, causal: bool = False) -> int:
    """Operations to train on one token: PaLM's convention, or Megatron's with `causal`."""
    return 3 * round(sum(stage_flops(model, vocab_size, causal)))


def stage_flops(
    model: ModelConfig, vocab_size: int, causal: bool = False, outputs: int = 0, language: bool = True
) -> list[float]:
    """Forward operations per token of every stage of model/stages.py: tokens, positions, blocks, a task's head of
    `outputs` columns if there are any, and the tied head if the `language` model counts.
    """
    width, units = model.width, model.units
    if model.kind == "lstm":
        body = [2.0 * (4 * units * (width + units) + units * width)]
    else:
        attention = (2 if causal else 4) * model.context * width
        body = [0.0, *([float(2 * (4 * width * width + 2 * width * model.ffn_width) + attention)] * model.layers)]
    head = [2.0 * width * outputs] if outputs else []
    return [0.0, *body, *head, *([2.0 * width * vocab_size] if language else [])]


def chunk_tokens(tokens: int, row_bytes: int, device: str) -> int:
    """Tokens whose logits the loss holds at once, of all that a micro-batch has: chunks of about equal length, in whole
    tiles of a matrix product.
    """
    chunks = math.ceil(tokens / max(1, CHUNK_BYTES[device] // row_bytes))
    length = math.ceil(tokens / chunks)
    return min(tokens, math.ceil(length / TILE) * TILE) if length > TILE else length
