"""Random numbers that are pure functions of a key and a position: they can be drawn again, in any order.

`Draws.of([7, 9], key)` stands for everything random about positions 7 and 9. Each question about them has a number of
its own, so that answers are independent: `.chance(1, 0.5)` is a coin for each, `.below(2, [10, 20])` a number below 10
for the first and below 20 for the second. The same questions about [9, 7] have the same answers in the other order.

Shapes: R positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.data.windows import Int64s, mix

UInt64s = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Draws:
    """`hash_R` is what all draws of a position derive from."""

    hash_R: UInt64s

    @classmethod
    def of(cls, position_R: Int64s, key: int) -> Draws:
        with np.errstate(over="ignore"):
            return cls(mix(position_R.astype(np.uint64) * _GOLDEN + np.uint64(key)))

    def bits(self, number: int) -> UInt64s:
        """Returns uint64 [R]: 64 random bits for question `number`."""
        with np.errstate(over="ignore"):
            return mix(self.hash_R + np.uint64(number) * _GOLDEN)

    def below(self, number: int, limit_R: Int64s) -> Int64s:
        """Returns int64 [R], uniform in [0, limit)."""
        return (self.bits(number) % limit_R.astype(np.uint64)).astype(np.int64)

    def chance(self, number: int, probability: float) -> NDArray[np.bool_]:
        """Returns bool [R], true with this probability."""
        return (self.bits(number) >> np.uint64(11)) * 2.0**-53 < probability

    def heads(self, number: int, coins_R: Int64s) -> Int64s:
        """Returns int64 [R]: how many of so many fair coins show heads, a binomial number. Each coin is one random
        bit.
        """
        heads_R, key_R = np.zeros_like(coins_R), self.bits(number)
        for row in np.flatnonzero(coins_R):
            coins = int(coins_R[row])
            counter = np.arange(-(-coins // 64), dtype=np.uint64)
            with np.errstate(over="ignore"):
                coin_bits = int.from_bytes(mix(key_R[row] + counter * _GOLDEN).astype("<u8").tobytes(), "little")
            heads_R[row] = (coin_bits & ((1 << coins) - 1)).bit_count()
        return heads_R
