"""How a run ends, and the exit code that says so. Never imports torch."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpt1_ds.common.errors import EXIT_CONTINUE
from gpt1_ds.launcher.launch import STORE_VARIABLE

DONE, USER, HANDOVER = "done", "user", "handover"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `done`, `user` (STOP file) or `handover` (saved, to be continued), after `step` steps."""

    reason: str
    step: int

    @property
    def exit_code(self) -> int:
        """75 for a run to be continued; 0 under torchrun or srun, which would take 75 for a crash and end the job."""
        under_launcher = "RANK" in os.environ and STORE_VARIABLE not in os.environ
        return EXIT_CONTINUE if self.reason == HANDOVER and not under_launcher else 0
