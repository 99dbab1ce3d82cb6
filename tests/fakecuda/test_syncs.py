"""How often the host waits for the device in a step, and how often it copies to it, in every engine and precision.

The fake device is always behind the host: an event that DeepSpeed asks for is never done yet.
"""

from __future__ import annotations

import pytest

from tests.helpers.fake_layouts import ENGINES, RECIPE, Case
from tools.fakecuda import ranks, steps
from tools.fakecuda.steps import Step

ONCE = 1  # the loss and the norm together; an overflow in fp16 and a rejected update are decided by what is read then
SMALL_BUCKETS = ["parallel.deepspeed={zero_optimization: {reduce_bucket_size: 20000, stage3_prefetch_bucket_size: 20000}}"]
NOTHING_KEPT = ["parallel.deepspeed={zero_optimization: {stage3_param_persistence_threshold: 0}}"]


def check(step: Step, syncs: int = ONCE) -> None:
    assert len(step.counts.syncs) == syncs, step.waits()
    assert len(step.counts.copies) == 1, step.waits()
