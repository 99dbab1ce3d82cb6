"""When the state is saved, how much is kept, and where a run begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every: int = 100  # optimizer steps between saves; 0: only at the end and on request
    keep: int = 3  # newest checkpoints kept; none is deleted before a newer one was read back
    keep_every: int = 0  # also keep every checkpoint whose step is a multiple of this; 0: none
    background: Literal["auto", "on", "off"] = "auto"  # write a copy while training continues; auto: if memory allows
    resume: str = "auto"  # auto: from the newest good one; never: begin anew, what is there is moved aside; or a PATH
    init_from: str | None = None  # begin with the weights of this checkpoint, a fresh optimizer and step 0

    def problems(self) -> Iterator[str]:
        if self.every < 0:
            yield f"checkpoint.every={self.every} is negative; use 0 to save only at the end"
        if self.keep < 1:
            yield f"checkpoint.keep={self.keep} is too small; at least the newest checkpoint is kept: use 1"
        if self.keep_every < 0:
            yield f"checkpoint.keep_every={self.keep_every} is negative; use 0 for none"
        if self.init_from is not None and self.resume not in ("auto", "never"):
            yield "checkpoint.init_from and checkpoint.resume=PATH both say where to begin; keep one"
