"""The softmax of the loss over one chunk of logits as a Triton kernel: read once for the sums, once for the gradient.

One program has one token. It goes over the token's columns with a running maximum and sum; where one rank has all
columns, the same program writes the gradient over them, while they are still in the GPU's cache.

Shapes: C tokens of the chunk, V columns on this rank, of which the first `real` are no padding.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4096, 8  # columns that a program works on at once; its warps


def _memory(logits_CV: Tensor, *_: Any) -> Tensor:
    """Returns memory for the sums."""
    return logits_CV.new_empty(2, len(logits_CV), dtype=torch.float32)


@torch.library.custom_op("gpt1_ds::softmax_sums", mutates_args=())
def sums(
    logits_CV: Tensor, labels_C: Tensor, first: int, real: int, on_label: float = 1.0, on_each: float = 0.0
) -> Tensor:
    """Returns fp32 [2, C]: log-sum-exp over this rank's columns, and this rank's part of the logits' mean over the
    target: that of the label times `on_label`, and those of all real columns times `on_each`.

    `labels_C` are int64 columns of the whole vocabulary, `first` of which is this rank's column 0. A rank of padding
    alone gives -inf.
    """
    sums_2C = _memory(logits_CV)
    _launch(logits_CV, labels_C, sums_2C, sums_2C, first, real, 0.0, on_label, on_each, read=True, write=False)
    return sums_2C


@torch.library.custom_op("gpt1_ds::softmax_gradient", mutates_args=("logits_CV",))
def gradient(
    logits_CV: Tensor,
    labels_C: Tensor,
    weights_C: Tensor,
    logsumexp_C: Tensor,
    first: int,
    real: int,
    unit: float,
    on_label: float = 1.0,
    on_each: float = 0.0,
) -> None:
    """Over the logits: unit x weight x (probability - target), by the log-sum-exp over all ranks' columns."""
    _launch(logits_CV, labels_C, logsumexp_C, weights_C, first, real, unit, on_label, on_each, read=False, write=True)


@torch.library.custom_op("gpt1_ds::softmax_sums_and_gradient", mutates_args=("logits_CV",))
def sums_and_gradient(
    logits_CV: Tensor,
    labels_C: Tensor,
    weights_C: Tensor,
    first: int,
    real: int,
    unit: float,
    on_label: float = 1.0,
    on_each: float = 0.0,
) -> Tensor:
    """Returns both in one, where this rank has all columns."""
    sums_2C = _memory(logits_CV)
    _launch(logits_CV, labels_C, sums_2C, weights_C, first, real, unit, on_label, on_each, read=True, write=True)
    return sums_2C


sums.register_fake(_memory)
sums_and_gradient.register_fake(_memory)


def _launch(
    logits_CV: Tensor,
    labels_C: Tensor,
    sums: Tensor,
    weights_C: Tensor,
    first: int,
    real: int,
    unit: float,
    on_label: float,
    on_each: float,
    read: bool,
    write: bool,
) -> None:
    assert logits_CV.stride(1) == 1, "the columns of a token lie together"
    tokens, columns = logits_CV.shape
    softmax_kernel[(tokens,)](
        logits_CV, labels_C, sums, weights_C, logits_CV.stride(0), tokens, columns, real, first, unit,
        on_label, on_each, READ=read, WRITE=write, SMOOTH=on_each != 0.0, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "columns", "real", "first"])
def softmax_kernel(
    LOGITS, LABELS, SUMS, WEIGHTS, stride, tokens, columns, real, first, unit,
    on_label, on_each, READ: tl.constexpr, WRITE: tl.constexpr, SMOOTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """READ: `SUMS` [2, tokens] is written; otherwise its first row is read. WRITE: gradients are written. SMOOTH: the
    target is not the label alone.
    """
    token = tl.program_id(0).to(tl.int64)
    LOGITS += token * stride
    label = tl.load(LABELS + token) - first
    if READ:
        predicted = tl.load(LOGITS + label, mask=(label >= 0) & (label < real), other=0.0).to(tl.float32)
        largest, total, everything = float("-inf"), 0.0, 0.0
        for start in range(0, real, BLOCK):
            column = start + tl.arange(0, BLOCK)
            logits = tl.load(LOGITS + column, mask=column < real, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(largest, tl.max(logits, 0))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            total = total * tl.exp(largest - base) + tl.sum(tl.exp(logits - base), 0)
            largest = higher
            if SMOOTH:
                everything += tl.sum(tl.where(column < real, logits, 0.0), 0)
        if SMOOTH:
            predicted = on_label * predicted + on_each * everything
        logsumexp = largest + tl.log(total)
        tl.store(SUMS + token, logsumexp)
        tl.store(SUMS + tokens + token, predicted)
    else:
        logsumexp = tl.load(SUMS + token)
    if WRITE:
        weight = tl.load(WEIGHTS + token).to(tl.float32) * unit
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            logits = tl.load(LOGITS + column, mask=column < real, other=float("-inf")).to(tl.float32)
            if SMOOTH:
                target = tl.where(column == label, on_label, 0.0) + tl.where(column < real, on_each, 0.0)
                gradient = (tl.exp(logits - logsumexp) - target) * weight
            else:
                gradient = tl.exp(logits - logsumexp) * weight - tl.where(column == label, weight, 0.0)
            tl.store(LOGITS + column, gradient.to(LOGITS.dtype.element_ty), mask=column < columns)
