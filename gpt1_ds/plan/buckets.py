"""The buckets in which gradients are reduced over data-parallel ranks: how many bytes a rank needs for them.

They are DeepSpeed 0.19.8's and those of engine/deepspeed/overlap.py. On CUDA:

                          buckets of a backward pass              while one is reduced
    ZeRO 0                -                                       a copy, which stays as the gradients
    ZeRO 1, bf16          slices of the fp32 gradients            -
    ZeRO 1, fp32, fp16    two in fp32, until a step is reduced    a copy, and one in the type that is sent
    ZeRO 2                two in the model's type                 the same
    ZeRO 3                one, held all the time, and its copy    gradients that its stream has yet to read

Two of them take turns: one is filled while the other is reduced. A single rank has one. On a CPU nothing overlaps, and
what is not written takes no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpt1_ds.config import Config
from gpt1_ds.config.parallel import BUCKET_ELEMENTS


@dataclass(frozen=True)
class Buckets:
    """Bytes of one rank."""

    held: int  # from step to step
    filled: int  # by a backward pass, from its first gradient on
    copied: int  # of each element that is reduced


def buckets(config: Config, data_ranks: int, parameters: int, device: str) -> Buckets:
    """Returns what a rank with `parameters` elements needs, one of `data_ranks`, on `cuda` or `cpu`."""
    zero, precision = config.parallel.zero, config.train.precision
    sent = 2 if precision == "fp16" else 4  # bytes of an element as it is sent, here and below
    if device == "cpu":
        return Buckets(held=4 * min(BUCKET_ELEMENTS, parameters) * (zero == 3), filled=0, copied=8 * (zero >= 2))
    if zero == 0 or (zero == 1 and precision == "bf16"):
        return Buckets(held=0, filled=0, copied=4 * (zero == 0 and data_ranks > 1))
    if zero == 3:
        return Buckets(held=sent * BUCKET_ELEMENTS, filled=sent * BUCKET_ELEMENTS, copied=4)
    filled = 4 if zero == 1 or precision == "fp32" else 2  # bytes of an element in a bucket
    taking_turns = 2 if data_ranks > 1 else 1
    return Buckets(held=0, filled=taking_turns * filled * BUCKET_ELEMENTS, copied=filled + sent * (sent != filled))
