"""How long, how much at once, how precisely."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

LARGEST_BATCH = 1 << 20  # sequences
Patches = Literal["fast", "fixes", "none"]
AUTO = 0  # of micro_batch
LENGTH_KEYS = ("steps", "tokens", "epochs")  # exclude one another


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int | None = None  # optimizer steps; of steps, tokens and epochs the last one named counts
    tokens: int | None = None  # training tokens, rounded up to whole steps
    epochs: float | None = None  # passes over the data, rounded up to whole steps; nothing named: 1 epoch
    global_batch: int = 16  # sequences per optimizer step, over all ranks
    micro_batch: int = 8  # sequences per forward pass of one rank; auto (or 0): as many as fit into its memory
    device: Literal["auto", "cuda", "cpu"] = "auto"  # auto: a GPU where there is one; a job that has GPUs must use them
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"  # of the forward and backward pass; masters are always fp32
    compile: Literal["auto", "on", "off"] = "auto"  # torch.compile of the blocks; auto: on a GPU, where it pays
    cuda_graphs: Literal["auto", "on", "off"] = "auto"  # a micro-batch as one launch; auto: once `doctor --gpu` passed
    deepspeed_patches: Patches = "fast"  # replaced parts: all; what right numbers need; none
    deterministic: bool = False  # on GPUs: kernels and NCCL sums that repeat to the bit, at some cost; CPUs always do
    recompute: Literal["none", "block"] = "none"  # block: keep only block inputs, run each block twice, save memory
    log_every: int = 10  # steps between lines in metrics.jsonl
    eval_every: int = 100  # steps between held-out evaluations; 0: only at the end
    eval_batches: int = 8  # held-out batches of global_batch sequences per evaluation; 0: all of the held-out data
    profile: str | None = None  # START:STOP: a trace and a summary of steps START to STOP - 1 in <run>/profile/

    @property
    def profiled(self) -> range:
        """The steps to profile, numbered from 1; what comes after the last step of the run does not come."""
        start, _, stop = (self.profile or "0:0").partition(":")
        return range(int(start), int(stop))

    def problems(self) -> Iterator[str]:
        if self.cuda_graphs == "on" and self.deepspeed_patches != "fast":
            yield (
                f"train.cuda_graphs=on needs train.deepspeed_patches=fast, not {self.deepspeed_patches}; leave one of "
                "the two out"
            )
        for key in ("global_batch", "log_every"):
            if getattr(self, key) < 1:
                yield f"train.{key}={getattr(self, key)} is too small; it must be at least 1"
        if self.global_batch > LARGEST_BATCH:
            yield f"train.global_batch={self.global_batch} is too large; use at most {LARGEST_BATCH}"
        for key in ("micro_batch", "eval_every", "eval_batches"):
            if getattr(self, key) < 0:
                yield f"train.{key}={getattr(self, key)} is negative; use 0 or more"
        for key in LENGTH_KEYS:
            value = getattr(self, key)
            if value is not None and not value > 0:
                yield f"train.{key}={value} must be above 0"
        if self.micro_batch > 0 and self.global_batch <= LARGEST_BATCH and self.global_batch % self.micro_batch:
            candidates = range(1, min(self.global_batch, self.micro_batch) + 1)
            fits = max((n for n in candidates if self.global_batch % n == 0), default=1)
            yield (
                f"train.global_batch={self.global_batch} is not a multiple of train.micro_batch={self.micro_batch}; "
                f"use train.global_batch={-(-self.global_batch // self.micro_batch) * self.micro_batch}, or "
                f"train.micro_batch={fits}"
            )
        if self.profile is not None and not re.fullmatch(r"[0-9]{1,15}:[0-9]{1,15}", self.profile):
            yield f"train.profile={self.profile} is not START:STOP; write 20:25 for steps 20 to 24"
        elif self.profile is not None and not (self.profiled.start and len(self.profiled)):
            yield f"train.profile={self.profile} names no step; write START:STOP with 1 <= START < STOP"
