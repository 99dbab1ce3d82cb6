"""Dropout without a generator.

A mask is a pure function of (seed, step, site, global row, head or position, channel). It is therefore the same on
every layout, at every micro-batch size and when a block is recomputed, and there is no state to save.

    host     row_keys(seed, step, rows)            -> int64[B], travels with the hidden states
    device   site_keys(keys_B, site)               -> two int32[B] per dropout site (and head)
             keep_mask(counters, keys, threshold)  -> 1 or 0, from 16 random bits per element

Two neighbouring elements share one 32-bit hash, a half each: counter c gives the bits of elements 2c (low) and 2c + 1
(high). The drop probability is therefore a multiple of 2**-16, and the scale is that of the probability really used.

Shapes: B rows of the micro-batch, S positions, D channels, N heads on this rank.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_STEP_64 = 0x9E3779B97F4A7C15  # splitmix64: golden-ratio increment and finaliser (Steele, Lea, Flood 2014)
_MIX_64 = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_COUNTER_32 = 0x9E3779B1
_MIX_32 = (0x85EBCA6B, 0xC2B2AE35)  # murmur3's finaliser (Appleby 2011), a second key between its multiplications
_LANES = 1 << 16


def row_keys(seed: int, step: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns int64[B], 62 bits each: one key per global row of the batch at `step`."""
    state = _splitmix(np.uint64(seed) + np.zeros(len(rows), np.uint64))
    for part in (np.uint64(step), rows.astype(np.uint64)):
        state = _splitmix(state ^ part)
    return (state >> np.uint64(2)).astype(np.int64)


def _splitmix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        state = state + np.uint64(_STEP_64)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX_64[0])
        state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX_64[1])
        return state ^ (state >> np.uint64(31))


def site_keys(keys_B: Tensor, site: int | Tensor, first_head: int = 0, heads: int = 1) -> tuple[Tensor, Tensor]:
    """Returns two int32[B, heads] keys for one dropout site; `first_head` is this rank's first head among all of the
    model's.
    """
    head_N = torch.arange(first_head, first_head + heads, device=keys_B.device, dtype=torch.int64)
    state = keys_B[:, None] ^ ((site << 20) + head_N)[None, :] * _signed(_STEP_64, 64)
    for shift, factor in ((30, _MIX_64[0]), (27, _MIX_64[1])):
        state = (state ^ _shift_right(state, shift, 64)) * _signed(factor, 64)
    state = state ^ _shift_right(state, 31, 64)
    return state.to(torch.int32), _shift_right(state, 32, 64).to(torch.int32)


def threshold(probability: float) -> int:
    """Returns the 16-bit value below which an element is dropped."""
    return round(probability * _LANES)


def scale(probability: float) -> float:
    """Returns 1 / keep probability, of the probability that `threshold` really gives."""
    return _LANES / (_LANES - threshold(probability))


@lru_cache(maxsize=16)
def counters(first: int, count: int, device: torch.device) -> Tensor:
    """Returns int32[count]: the hash's starting points first .. first + count - 1, spread by a multiplication."""
    counter = torch.arange(first, first + count, dtype=torch.int32, device=device)
    return counter.mul_(_signed(_COUNTER_32, 32))


def grid_counters(rows: slice, row_length: int, columns: int, device: torch.device) -> Tensor:
    """Returns int32 [rows, columns]: the first `columns` counters of these rows, each of which has `row_length`."""
    row_R = torch.arange(rows.start, rows.stop, dtype=torch.int32, device=device)
    return row_R.mul_(_signed(row_length * _COUNTER_32 & 0xFFFFFFFF, 32)).unsqueeze(1) + counters(0, columns, device)


def keep_mask(counter: Tensor, key: Tensor, second_key: Tensor, limit: int, dtype: torch.dtype) -> Tensor:
    """Returns, in `counter + key`'s broadcast shape, its last axis doubled, 1 where an element is kept, 0 elsewhere; in
    the type that it is multiplied with, because torch is four times slower with a mask of booleans.
    """
    bits = counter + key
    shifted = torch.empty_like(bits)  # written again and again: fresh memory costs more than the arithmetic

    def xor_shifted(shift: int) -> Tensor:
        torch.bitwise_right_shift(bits, shift, out=shifted)
        return bits.bitwise_xor_(shifted.bitwise_and_((1 << (32 - shift)) - 1))

    for shift, factor in zip((16, 13), _MIX_32, strict=True):
        xor_shifted(shift).mul_(_signed(factor, 32))
        if shift == 16:
            bits.bitwise_xor_(second_key)
    xor_shifted(16)
    lanes = bits.view(torch.int16)
    return torch.ge(lanes, _signed_limit(limit), out=torch.empty_like(lanes, dtype=dtype))


def is_kept(element: Tensor, key: Tensor, second_key: Tensor, limit: int) -> Tensor:
    """Returns the same mask as booleans, of int32 elements numbered from 0: each hashes its pair's counter by itself.
    Twice the arithmetic, but a compiler fuses all of it, where a change of type within a tensor stops it.
    """
    bits = (element >> 1) * _signed(_COUNTER_32, 32) + key
    bits = (bits ^ _shift_right(bits, 16, 32)) * _signed(_MIX_32[0], 32) ^ second_key
    bits = (bits ^ _shift_right(bits, 13, 32)) * _signed(_MIX_32[1], 32)
    bits = bits ^ _shift_right(bits, 16, 32)
    lane = torch.where((element & 1) == 1, bits >> 16, (bits << 16) >> 16)
    return lane >= _signed_limit(limit)


def dropout(x_SBD: Tensor, keys_B: Tensor, site: int | Tensor, probability: float, first_position: int = 0) -> Tensor:
    """Returns `x` with a fraction of its elements zeroed, the rest scaled up; `first_position` is that of x[0]."""
    if probability == 0.0:
        return x_SBD
    positions, rows, channels = x_SBD.shape
    pairs, limit = (channels + 1) // 2, threshold(probability)
    key_B1, second_B1 = site_keys(keys_B, site)
    key, second_key = key_B1.view(1, rows, 1), second_B1.view(1, rows, 1)
    if torch.compiler.is_compiling():
        position_S = torch.arange(first_position, first_position + positions, dtype=torch.int32, device=x_SBD.device)
        channel_D = torch.arange(channels, dtype=torch.int32, device=x_SBD.device)
        element_SD = position_S[:, None] * (2 * pairs) + channel_D
        return torch.where(is_kept(element_SD[:, None], key, second_key, limit), x_SBD * scale(probability), 0.0)
    counter_SC = counters(first_position * pairs, positions * pairs, x_SBD.device).view(positions, 1, pairs)
    keep_SBD = keep_mask(counter_SC, key, second_key, limit, x_SBD.dtype)
    return (x_SBD * keep_SBD[..., :channels]).mul_(scale(probability))


def dropout_of_part(
    x_SBF: Tensor, keys_B: Tensor, site: Tensor, probability: float, first_feature: int, all_features: int
) -> Tensor:
    """Returns what `dropout` does of `all_features`, of those of this rank, which begin with `first_feature`."""
    positions, _, features = x_SBF.shape
    row_length = all_features + all_features % 2
    element_SF = torch.arange(first_feature, first_feature + features, dtype=torch.int32, device=x_SBF.device)
    element_SF = element_SF + row_length * torch.arange(positions, dtype=torch.int32, device=x_SBF.device)[:, None]
    key_B1, second_B1 = site_keys(keys_B, site)
    kept_SBF = is_kept(element_SF[:, None], key_B1, second_B1, threshold(probability))
    return torch.where(kept_SBF, x_SBF * scale(probability), 0.0)


def _signed_limit(limit: int) -> int:
    """Returns the limit for half a hash that is read as a signed number: it is shifted by half the range."""
    return limit - _LANES // 2


def _shift_right(x: Tensor, shift: int, width: int) -> Tensor:
    """Returns the logical shift: torch's is arithmetic on signed integers and would smear the sign bit."""
    return (x >> shift).bitwise_and_((1 << (width - shift)) - 1)


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value
