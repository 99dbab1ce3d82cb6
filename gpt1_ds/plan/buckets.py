"""What gradients need to be reduced over data-parallel ranks, by DeepSpeed 0.19.8 and engine/deepspeed/overlap.py.

On CUDA:
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
    """Bytes."""

    held: int  # from step to step
    filled: int  # by a backward pass, from its first gradient on
    copied: int  # of each element that is reduced


def buckets(config: Config, data: int, parameters: int, device: str) -> Buckets:
    """Returns what a rank with `parameters` elements needs, one of `data` that share data, on `cuda` or `cpu`."""
    zero, precision = config.parallel.zero, config.train.precision
    sent = 2 if precision == "fp16" else 4
    if device == "cpu":
        return Buckets(held=4 * min(BUCKET_ELEMENTS, parameters) * (zero == 3), filled=0, copied=8 * (zero >= 2))
    if zero == 0 or (zero == 1 and precision == "bf16"):
        return Buckets(held=0, filled=0, copied=4 * (zero == 0 and data > 1))
    if zero == 3:
        return Buckets(held=sent * BUCKET_ELEMENTS, filled=sent * BUCKET_ELEMENTS, copied=4)
    element = 4 if zero == 1 or precision == "fp32" else 2
    turns = 2 if data > 1 else 1
    return Buckets(held=0, filled=turns * element * BUCKET_ELEMENTS, copied=element + sent * (sent != element))
