"""What the planner assumes of CUDA devices: each constant in one place, with its origin.

counted      kernels and bytes of GPT-1's block, forward and backward in bf16, on fake CUDA tensors and in the code that
             torch 2.13's compiler writes for sm_90; tests/fakecuda compares them
data sheet   NVIDIA's figures; products are dense
assumed      round figures of public measurements

`plan --calibrate` on a GPU replaces all speeds; the counts stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.config import Config, ModelConfig
from gpt1_ds.config.policy import is_compiled

# Kernels of one part of a block, (forward, backward); counted. A compiled block is one graph.
MATRIX = (1, 2)  # a product, and those of both gradients
ATTENTION = {"exact": (1, 2), "fused": (1, 1)}  # the Triton kernels of model/kernels/; torch's own
EAGER_COPIES, COMPILED_COPIES = (0, 2), (0, 1)  # of the gradients of q, k and v that torch's own attention gives
EAGER_REST = (8, 15)  # biases and their sums, GELU, residual sums with their norms, heads laid out
EAGER_MASK = (36, 2)  # hashed, and multiplied with; for each dropout that no norm follows
EAGER_KEYS = (20, 0)  # of masks that attention, or a residual sum with its norm, makes from them
EAGER_PRE = (1, -3)  # more where norms come first: one is by itself, the kernel of the other adds gradients up
COMPILED_REST = (3, 16)
COMPILED_MASK = (1, 0)  # keys of both residual branches; masks are made where they are used
COMPILED_KEYS = (1, 0)
ENDS = (11, 10)  # embeddings, head and loss, whose chunks of logits are few
COMPILED_ENDS = (11, 9)  # of which the sum of the embeddings and its dropout are compiled

# What the host launches where micro-batches are CUDA graphs; counted
REPLAY = 6  # for each of them: copies of its inputs, the graph, a copy of its loss
STEP = 30  # once a step: losses, norm, update

# Bytes of a block's simple passes, forward and backward together; counted
MOVED = 0.37  # of `Elementwise.moved`: sums of biases, heads laid out; what products read and write hides under them
COMPILED_MOVED = 0.53  # of these, what a compiler leaves
MASK_BYTES, MASK_TENSORS = 64, 8  # for each element of an eager mask: integers, and values of the model's type
COMPILED_MASK_TENSORS = 2  # values of the model's type, for each element of a compiled one

# Speeds of one rank
PRODUCTS = ((1e9, 0.06), (1e10, 0.3), (1e11, 0.6), (1e12, 0.7), (1e13, 0.75))  # FLOPs, fraction of the peak; assumed
STREAM = 0.8  # of the memory's and of a link's bandwidth; assumed
FLASH = ((0.25, 128), (0.2, 320))  # fraction of the peak (assumed), FLOPs of a causal score at head width 64
EXACT = ((0.25, 128), (0.2, 448))  # scores and their gradients are computed twice: dQ has a kernel of its own
HASH = (4, 8)  # integer instructions of a causal score's mask: eight for each of its tiles, half of which are computed
INTEGERS = 0.25  # integer instructions for each fp32 FLOP of the peak: half the lanes, nothing fused; data sheet
GELU_TENSORS, NORM_TENSORS, LOSS_TENSORS = 5, 8, 3  # passes over values of the model's type, forward and backward
UPDATE_BYTES = 34  # of a parameter: master, moments and gradient read, all but the last written, bf16 copy, norm
LAUNCH = 8e-6  # seconds of the host for each eager kernel, autograd's part included; assumed
KERNEL = 2e-6  # seconds that the smallest kernel of a CUDA graph takes; assumed
NODE_LATENCY, NETWORK_LATENCY = 8e-6, 2e-5  # seconds of a message; assumed


@dataclass(frozen=True)
class DataSheet:
    """Describes a GPU, and the nodes of eight that it is sold in. TF32 is never on."""

    memory_gib: float
    tflops: float  # bf16 and fp16 products
    tflops_fp32: float
    bandwidth: float  # bytes per second of its memory
    link: float  # bytes per second of one GPU to the others of its node, each way
    network: float  # to other nodes

    def rates(self, precision: str) -> dict[str, Any]:
        """Returns what one rank reaches, by the names of machine.Speeds."""
        size, peak = (4, self.tflops_fp32 * 1e12) if precision == "fp32" else (2, self.tflops * 1e12)
        stream, integers = STREAM * self.bandwidth, INTEGERS * self.tflops_fp32 * 1e12
        exact = ((flops / (part * peak), hashed / integers) for (part, flops), hashed in zip(EXACT, HASH, strict=True))
        return {
            "gemm": tuple((flops, part * peak) for flops, part in PRODUCTS),
            "exact": tuple(1 / sum(seconds) for seconds in exact),
            "fused": tuple(part * peak / flops for part, flops in FLASH),
            "gelu": stream / (GELU_TENSORS * size),
            "norm": stream / (NORM_TENSORS * size),
            "dropout": stream / (MASK_BYTES + MASK_TENSORS * size),
            "loss": stream / (LOSS_TENSORS * size),
            "stream": stream,
            "memory": stream,
            "update": stream / UPDATE_BYTES,
            "launch": LAUNCH,
        }


DATA_SHEETS = {
    "h100": DataSheet(80, 989.4, 67.0, 3.35e12, 450e9, 50e9),
    "h200": DataSheet(139, 989.4, 67.0, 4.8e12, 450e9, 50e9),
    "a100": DataSheet(80, 312.0, 19.5, 2.04e12, 300e9, 25e9),
}


def block_kernels(config: Config) -> tuple[int, int]:
    """Returns (forward, backward) kernels of one block for one micro-batch; adding up gradients is not among them."""
    return _block_kernels(config.model, is_compiled(config), config.train.recompute == "block")


@lru_cache(maxsize=64)
def _block_kernels(model: ModelConfig, compiled: bool, again: bool) -> tuple[int, int]:
    matrices = len(next(layer for layer in architecture(model, 1).layers if layer.kind == "block").matrices)
    parts = [*[MATRIX] * matrices, ATTENTION[model.attention], COMPILED_REST if compiled else EAGER_REST]
    if model.attention == "fused":
        parts.append(COMPILED_COPIES if compiled else EAGER_COPIES)
    if model.norm == "pre" and not compiled:
        parts.append(EAGER_PRE)
    if model.residual_dropout:
        parts += [COMPILED_MASK] if compiled else [EAGER_KEYS, EAGER_KEYS if model.norm == "post" else EAGER_MASK]
    if model.attention_dropout:
        # torch's own attention draws its mask, seeded outside of the graph
        parts.append(COMPILED_KEYS if compiled and model.attention == "exact" else EAGER_KEYS)
    forward, backward = (sum(part[way] for part in parts) for way in (0, 1))
    if again:
        backward += forward
    return forward, backward


def end_kernels(config: Config) -> tuple[int, int]:
    """Returns (forward, backward) of both ends of the model, for one micro-batch."""
    ends, masks = (COMPILED_ENDS, COMPILED_MASK) if is_compiled(config) else (ENDS, EAGER_MASK)
    if not config.model.embedding_dropout:
        return ends
    return ends[0] + masks[0], ends[1] + masks[1]
