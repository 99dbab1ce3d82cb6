"""Which tokens are in batch k: a pure function of (seed, k, data hash), computed on the fly.

The token stream of a dataset is cut into windows of the context length. Sequence n of a run is one window of one
source: sources are interleaved by weight, and each pass over a source visits its windows in the order of a keyed
permutation. The cuts are the same in every pass, or begin elsewhere in each on a ring, where the first token follows
the last: either way a pass reads no token twice. Nothing is shuffled in memory and nothing depends on ranks,
micro-batches or where a run was interrupted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
_ROUNDS = 6  # of the Feistel network; four already give a strong pseudo-random permutation (Luby and Rackoff 1988)
_SHARES = 1 << 20  # weights are rounded to this fraction, so that n * share stays below 2**63 for n up to 10**12


def key_of(*parts: object) -> int:
    """Returns 64 bits that name a permutation."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def permute(index: Int64s, size: int, key: int) -> Int64s:
    """Returns the images of `index` (each in [0, size)) under the permutation of [0, size) that `key` names; O(1) each.

    A Feistel network over the smallest even-length range of bits that holds `size`; images that fall outside walk on.
    """
    if size <= 1:
        return np.zeros_like(index)
    half = np.uint64(((size - 1).bit_length() + 1) // 2)
    values = index.astype(np.uint64)
    pending = np.ones(len(values), dtype=bool)
    while pending.any():
        values[pending] = _feistel(values[pending], half, key)
        pending = values >= np.uint64(size)
    return values.astype(np.int64)


def _feistel(values: NDArray[np.uint64], half: np.uint64, key: int) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for number in range(_ROUNDS):
        left, right = right, left ^ (mix(right + np.uint64((key + number * 0x9E3779B97F4A7C15) % 2**64)) & mask)
    return (left << half) | right


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns splitmix64's finaliser (Steele, Lea, Flood 2014), wrapping around."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def blend(sequence: Int64s, weights: Sequence[float]) -> tuple[Int64s, Int64s]:
    """Returns (source, number of the sequence within that source) for sequence numbers 0, 1, 2, ...

    Source by source, of the first n sequences that earlier sources left over a source takes floor(n * its share): every
    prefix holds each source's share to within one sequence per source, and each source is read 0, 1, 2, ... without
    gaps.
    """
    source = np.full(len(sequence), len(weights) - 1, dtype=np.int64)
    number = sequence.astype(np.int64).copy()
    left = np.ones(len(sequence), dtype=bool)
    for at in range(len(weights) - 1):
        share = round(_SHARES * weights[at] / sum(weights[at:]))
        before, after = number * share // _SHARES, (number + 1) * share // _SHARES
        taken = left & (after > before)
        source[taken], number[taken] = at, before[taken]
        left &= ~taken
        number[left] -= before[left]
    return source, number


@dataclass(frozen=True)
class WindowOrder:
    """The order in which one source's windows are read. `used` windows of `windows` are, the same ones every epoch;
    with `moving` (where all are used) every epoch cuts them anew.
    """

    windows: int
    used: int
    data_hash: str
    seed: int
    moving: bool = False

    def at(self, number: Int64s) -> Int64s:
        """Returns the window of the source's sequence `number`; each pass over `used` windows has its own order."""
        epoch, place = np.divmod(number, self.used)
        window = np.empty_like(number)
        for one in np.unique(epoch):
            here = epoch == one
            window[here] = permute(place[here], self.used, key_of("order", self.seed, self.data_hash, one))
        if self.used < self.windows:  # which windows are used does not depend on the seed: caps nest
            window = permute(window, self.windows, key_of("unique", self.data_hash))
        return window

    def starts(self, number: Int64s, context: int, tokens: int) -> Int64s:
        """Returns the first token of the source's sequences `number`, within its `tokens`."""
        first = self.at(number) * context
        if self.moving:
            epochs, here = np.unique(number // self.used, return_inverse=True)
            offsets = [key_of("offset", self.seed, self.data_hash, epoch) % tokens for epoch in epochs]
            first = (first + np.array(offsets, dtype=np.int64)[here]) % tokens
        return first


def fingerprint(tokens_BT: NDArray[np.integer], rows: Int64s) -> int:
    """Returns the signed 64-bit sum over rows of a hash of (global row, its tokens); sums over ranks are the batch's
    fingerprint.
    """
    places = mix(np.arange(1, tokens_BT.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
    with np.errstate(over="ignore"):
        per_row = (tokens_BT.astype(np.uint64) + np.uint64(1)) @ places
        return int(mix(per_row + mix(rows.astype(np.uint64) + np.uint64(1))).sum(dtype=np.uint64).astype(np.int64))
