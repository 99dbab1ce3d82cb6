"""What one device computes, against the CPU: dropout masks bit for bit, a block of the model within rounding.

What rounding may do is measured, not guessed: the reference is computed in fp64, and a device may be a stated factor
further from it than a CPU in the same precision. The CPU's error is that of a piece which is small enough for a CPU
without bf16 units; relative to its tensor it hardly depends on the size.

Every check takes the device, so that tests run it where there is no GPU.

Shapes: G = rows x heads, N heads, S positions, H head width, B rows, D width, T positions of the loss, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.config import ModelConfig
from gpt1_ds.diagnostics.report import Record
from gpt1_ds.model import dropout
from gpt1_ds.model.build import compile_blocks
from gpt1_ds.model.kernels import attention
from gpt1_ds.model.kernels.cross_entropy import head_loss
from gpt1_ds.model.kernels.inputs import Drop, Scores
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.states import States
from gpt1_ds.model.transformer import Block
from gpt1_ds.objectives.base import row_facts

Kind = Literal["exact", "fused"]  # of attention
Seen = Literal["documents", "padded rows and a bias"]  # what decides, beside the order, which keys a query sees and how

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FACTORS = {"fp32": 8, "bf16": 3}  # of a CPU's error: fast exponentials and sums in another order, but no TF32
SMALL, SMALL_VOCABULARY = 64, 2000  # positions and vocabulary of the piece that gives the CPU's error
LOSS_POSITIONS = 256
PROBABILITY = 0.1
_KEYS = dropout.row_keys(17, 3, np.arange(2))
_MASKS = "a run cannot move between CPU and GPU with the same dropout: report it with this file"
_VALUES = {
    "fp32": "is TF32 on (NVIDIA_TF32_OVERRIDE, torch.set_float32_matmul_precision)? Else leave this device out",
    "bf16": "try train.precision=fp32; if that holds, another version of torch or of the driver",
}


def hidden_masks(device: torch.device) -> Record:
    """Masks of hidden states: of several sites, positions and an odd number of channels, eager and as compiled code
    draws them. The value is the number of elements that differ.
    """
    keys_B, ones_SBD, wrong = torch.from_numpy(_KEYS), torch.ones(65, 2, 771), 0
    for site in (1, 2, 36):
        for first in (0, 511):
            mask = dropout.dropout(ones_SBD, keys_B, site, PROBABILITY, first)
            here = dropout.dropout(ones_SBD.to(device), keys_B.to(device), site, PROBABILITY, first)
            wrong += _different(mask, here)
    key_B1, second_B1 = dropout.site_keys(keys_B, 5)
    element, limit = torch.arange(4099, dtype=torch.int32), dropout.threshold(PROBABILITY)
    mask = dropout.is_kept(element, key_B1, second_B1, limit)
    wrong += _different(mask, dropout.is_kept(element.to(device), key_B1.to(device), second_B1.to(device), limit))
    return Record("dropout masks of hidden states, different bits", wrong == 0, wrong, 0, _MASKS * (wrong > 0))


def attention_masks(device: torch.device) -> Record:
    """Masks that `exact` attention applies, whatever its kernel: equal scores make every visible probability the same,
    and values that are columns of the identity show each of them. The value is the number that differ.
    """
    wrong = sum(
        _different(_dropped(positions, torch.device("cpu")), _dropped(positions, device)) for positions in (1, 64, 129)
    )
    return Record("dropout masks of exact attention, different bits", wrong == 0, wrong, 0, _MASKS * (wrong > 0))


def _dropped(positions: int, device: torch.device, width: int = 64, heads: int = 3) -> Tensor:
    """bool [G, S, S]: what attention drops."""
    keys_B = torch.from_numpy(_KEYS).to(device)
    key_G, second_G = (part.flatten() for part in dropout.site_keys(keys_B, 7, 0, heads))
    limit, scale = dropout.threshold(PROBABILITY), dropout.scale(PROBABILITY)
    mask = Drop(key_G, second_G, limit, scale, (positions + 1) // 2)
    zero_GSH = torch.zeros(len(key_G), positions, width, device=device)
    parts = []
    for first in range(0, positions, width):
        identity_SH = torch.eye(positions, device=device)[:, first : first + width]
        value_GSH = torch.zeros_like(zero_GSH)
        value_GSH[..., : identity_SH.shape[1]] = identity_SH
        parts.append(attention.exact(zero_GSH, zero_GSH, value_GSH, mask)[..., : identity_SH.shape[1]])
    return torch.cat(parts, -1) == 0


def block(
    device: torch.device, model: ModelConfig, group: ProcessGroup, precision: str, kind: Kind, compiled: bool = False
) -> Record:
    """A block with `kind` of attention, forward and backward, against the CPU's in fp64 from the same (rounded) values.
    The value is the relative error of the output or the gradient that is nearest to its limit; `group` is this rank
    alone.
    """
    rate = model.attention_dropout if kind == "exact" else 0.0  # only the hashed mask is the same everywhere
    model = replace(model, attention="exact", attention_dropout=rate)
    case = _case(model, group, precision)
    tested = _built(replace(model, attention=kind), group, case, device, TYPES[precision])
    if compiled:
        compile_blocks(tested)
    errors = case.errors(_both_ways(tested, case, model.heads)[0])
    name = f"block, {kind} attention, {precision}{', compiled' * compiled}: relative error"
    return _judged(name, errors, _block_errors(model, group, precision), precision)


@dataclass(frozen=True)
class _Case:
    """What a block, or the loss, is given, and what it should make of that."""

    weights: dict[str, Tensor]
    inputs: tuple[Tensor, ...]  # of a block: states, the gradient of its output, signs; each [S, B, D] or [S, B, 1]
    want: dict[str, Tensor]  # in fp64
    scales: dict[str, float]  # the Frobenius norms that errors are relative to

    def errors(self, got: dict[str, Tensor]) -> dict[str, float]:
        """Relative, and infinite where something is not finite."""
        off = {name: float(torch.linalg.vector_norm(got[name] - want)) for name, want in self.want.items()}
        return {name: one / self.scales[name] if one == one else float("inf") for name, one in off.items()}


@lru_cache(maxsize=8)
def _case(model: ModelConfig, group: ProcessGroup, precision: str) -> _Case:
    """A block with exact attention. A gradient that sums the tokens' parts may cancel: its error is relative to what
    the same parts sum up to with random signs, if that is more.
    """
    generator, dtype = torch.Generator().manual_seed(5), TYPES[precision]
    weights = {
        name: (0.05 * torch.randn(one.shape, generator=generator) + float("norm.weight" in name)).to(dtype)
        for name, one in _empty(model, group).named_parameters()
    }
    shape = (model.context, len(_KEYS), model.width)
    states_SBD, grad_SBD = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    sign_SB1 = torch.randint(2, (*shape[:2], 1), generator=generator) * 2 - 1
    case = _Case(weights, (states_SBD, grad_SBD, sign_SB1), {}, {})
    reference = _built(model, group, case, torch.device("cpu"), torch.float64)
    want, mixed = _both_ways(reference, case, model.heads, mixed=True)
    scales = {name: float(max(torch.linalg.vector_norm(one[name]) for one in (want, mixed))) for name in want}
    return replace(case, want=want, scales=scales)


@lru_cache(maxsize=8)
def _block_errors(model: ModelConfig, group: ProcessGroup, precision: str) -> dict[str, float]:
    """A CPU's own, of fewer positions."""
    model = replace(model, context=min(model.context, SMALL))
    case = _case(model, group, precision)
    tested = _built(model, group, case, torch.device("cpu"), TYPES[precision])
    return case.errors(_both_ways(tested, case, model.heads)[0])


def _empty(model: ModelConfig, group: ProcessGroup) -> Block:
    layer = next(layer for layer in architecture(model, 128).layers if layer.kind == "block")
    return Block(layer, model, TensorParallel(group))


def _built(model: ModelConfig, group: ProcessGroup, case: _Case, device: torch.device, dtype: torch.dtype) -> Block:
    made = _empty(model, group)
    made.load_state_dict(case.weights)
    return made.to(device, dtype)


def _both_ways(module: Block, case: _Case, heads: int, mixed: bool = False) -> tuple[dict[str, Tensor], ...]:
    """Output and gradients in fp64 on the CPU; with `mixed` a second time, each token's part with a sign of its own.
    Those of key biases are left out: the softmax ignores them, so they are rounding alone.
    """
    like = module.attention_norm.weight
    states_SBD, grad_SBD, sign_SB1 = (one.to(like.device, like.dtype) for one in case.inputs)
    states_SBD = states_SBD.clone().requires_grad_()
    out_SBD = module(States(states_SBD, torch.from_numpy(row_facts(_KEYS)).to(like.device))).last
    parameters = dict(module.named_parameters())
    found = []
    for grad in [grad_SBD, sign_SB1 * grad_SBD] if mixed else [grad_SBD]:
        gradients = torch.autograd.grad(out_SBD, [states_SBD, *parameters.values()], grad, retain_graph=mixed)
        named = dict(zip(("output", "input", *parameters), (out_SBD, *gradients), strict=True))
        if (biases := named.get("attention.qkv.bias")) is not None:
            named["attention.qkv.bias"] = biases.view(heads, 3, -1)[:, ::2]
        found.append({name: tensor.detach().double().cpu() for name, tensor in named.items()})
    return tuple(found)


def attention_of(device: torch.device, heads: int, width: int, positions: int, seen: Seen, precision: str) -> Record:
    """Exact attention with dropout, forward and backward, of what the block of GPT-1 has none of, against the CPU's in
    fp64 from the same (rounded) values. The value is the relative error of what is nearest to its limit.
    """
    case = _attention_case(heads, width, positions, seen, precision)
    errors = case.errors(_attention_both_ways(case, seen, device, TYPES[precision]))
    own = _attention_errors(heads, width, min(positions, SMALL), seen, precision)
    return _judged(f"exact attention of {seen}, {precision}: relative error", errors, own, precision)


@lru_cache(maxsize=8)
def _attention_errors(heads: int, width: int, positions: int, seen: Seen, precision: str) -> dict[str, float]:
    """A CPU's own, of fewer positions."""
    case = _attention_case(heads, width, positions, seen, precision)
    return case.errors(_attention_both_ways(case, seen, torch.device("cpu"), TYPES[precision]))


@lru_cache(maxsize=8)
def _attention_case(heads: int, width: int, positions: int, seen: Seen, precision: str) -> _Case:
    generator, dtype = torch.Generator().manual_seed(8), TYPES[precision]
    shape = (len(_KEYS) * heads, positions, width)
    of_heads = tuple(torch.randn(shape, generator=generator).to(dtype) for _ in range(4))  # q, k, v, a gradient
    case = _Case({"bias": torch.randn(heads, positions, positions, generator=generator)}, of_heads, {}, {})
    want = _attention_both_ways(case, seen, torch.device("cpu"), torch.float64)
    return replace(case, want=want, scales={name: float(torch.linalg.vector_norm(one)) for name, one in want.items()})


def _attention_both_ways(case: _Case, seen: Seen, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """The result and the gradients of q, k, v and the bias, if there is one, in fp64 on the CPU."""
    q_GSH, k_GSH, v_GSH, grad_GSH = (one.to(device, dtype).clone().requires_grad_() for one in case.inputs)
    bias_NSS = case.weights["bias"].to(device).clone().requires_grad_()
    heads, positions = bias_NSS.shape[:2]
    key_G, second_G = (part.flatten() for part in dropout.site_keys(torch.from_numpy(_KEYS).to(device), 7, 0, heads))
    mask = Drop(key_G, second_G, dropout.threshold(PROBABILITY), dropout.scale(PROBABILITY), (positions + 1) // 2)
    asked = {"q": q_GSH, "k": k_GSH, "v": v_GSH}
    if seen == "documents":
        scores = Scores(bounds_G2S=_two_documents(positions).to(device).repeat_interleave(heads, 0))
    else:
        until_B = torch.tensor([positions, 2 * positions // 3 + 1], dtype=torch.int32, device=device)
        scores = Scores(until_G=until_B.repeat_interleave(heads), causal=False, bias_NST=bias_NSS)
        asked["bias"] = bias_NSS
    out_GSH = attention.exact_of_parts((torch.stack((q_GSH, k_GSH, v_GSH)),), mask, scores)  # as in the model
    gradients = torch.autograd.grad(out_GSH, list(asked.values()), grad_GSH)
    found = dict(zip(("output", *asked), (out_GSH, *gradients), strict=True))
    return {name: one.detach().double().cpu() for name, one in found.items()}


def _two_documents(positions: int) -> Tensor:
    """int32 [B, 2, S]: the bounds of two documents in each row, which meet at another place in each."""
    meet_B1 = torch.tensor([[positions // 3], [positions // 2 + 1]], dtype=torch.int32)
    later_BS = torch.arange(positions, dtype=torch.int32) >= meet_B1
    return torch.stack([torch.where(later_BS, meet_B1, 0), torch.where(later_BS, positions, meet_B1)], 1)


def loss(device: torch.device, width: int, vocabulary: int, group: ProcessGroup, precision: str) -> Record:
    """The language model's loss and its gradients over 256 positions, against the CPU's in fp64 from the same (rounded)
    values. The value is the relative error of what is nearest to its limit.
    """
    case = _loss_case(width, vocabulary, LOSS_POSITIONS, group, precision)
    errors = case.errors(_loss_both_ways(case, group, device, TYPES[precision]))
    own = _loss_errors(width, min(vocabulary, SMALL_VOCABULARY), group, precision)
    return _judged(f"loss of the language model, {precision}: relative error", errors, own, precision)


@lru_cache(maxsize=4)
def _loss_errors(width: int, vocabulary: int, group: ProcessGroup, precision: str) -> dict[str, float]:
    """Returns a CPU's own errors, of fewer positions and a smaller vocabulary."""
    case = _loss_case(width, vocabulary, SMALL, group, precision)
    return case.errors(_loss_both_ways(case, group, torch.device("cpu"), TYPES[precision]))


@lru_cache(maxsize=4)
def _loss_case(width: int, vocabulary: int, positions: int, group: ProcessGroup, precision: str) -> _Case:
    generator, dtype = torch.Generator().manual_seed(6), TYPES[precision]
    hidden_TD = torch.randn(positions, width, generator=generator).to(dtype)
    weight_VD = (0.05 * torch.randn(vocabulary + 6, width, generator=generator)).to(dtype)  # six pad rows
    labels_T = torch.randint(vocabulary, (positions,), generator=generator)
    case = _Case({"weights": weight_VD}, (hidden_TD, labels_T), {}, {})
    want = _loss_both_ways(case, group, torch.device("cpu"), torch.float64)
    return replace(case, want=want, scales={name: float(torch.linalg.vector_norm(one)) for name, one in want.items()})


def _loss_both_ways(case: _Case, group: ProcessGroup, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    (hidden_TD, labels_T), weight_VD = case.inputs, case.weights["weights"]
    hidden_TD, weight_VD = (one.to(device, dtype).clone().requires_grad_() for one in (hidden_TD, weight_VD))
    weights_T = torch.full((len(labels_T),), 1 / len(labels_T), device=device)
    vocabulary = len(weight_VD) - 6
    value = head_loss(hidden_TD, weight_VD, labels_T.to(device), weights_T, vocabulary, TensorParallel(group))
    gradients = torch.autograd.grad(value, [hidden_TD, weight_VD])
    found = dict(zip(("loss", "states", "weights"), (value, *gradients), strict=True))
    return {name: one.detach().double().cpu() for name, one in found.items()}


def _judged(name: str, errors: dict[str, float], own: dict[str, float], precision: str) -> Record:
    """`own` are a CPU's errors; one that is below half of the type's last bit is luck."""
    least, factor = torch.finfo(TYPES[precision]).eps / 2, FACTORS[precision]
    limits = {key: factor * max(error, least) for key, error in own.items()}
    worst = max(errors, key=lambda key: errors[key] / limits[key])
    ok = errors[worst] <= limits[worst]
    note = f"of {worst}, where a CPU has {own[worst]:.2g} and {factor} times that may be"
    others = [key for key in errors if key != worst and not errors[key] <= limits[key]]
    if others:
        note += "; also " + ", ".join(f"{key} ({errors[key]:.2g}, limit {limits[key]:.2g})" for key in others)
    return Record(name, ok, errors[worst], limits[worst], note + f"; {_VALUES[precision]}" * (not ok))


def _different(mask: Tensor, here: Tensor) -> int:
    return int(((mask != 0) != (here.cpu() != 0)).sum())
