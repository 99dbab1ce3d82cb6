"""Which rank a job lost, and where: read from what srun and torchrun's agents print, which launch/life.sh keeps.

Only a rank that a signal ended counts as lost. One that ends with an exit code may have lost contact with one that was
killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from gpt1_ds.common.rundir import RunDir

_OF_AGENT = re.compile(r"gpt1-ds: rank (\d+) on (\S+) (was killed by (?!SIGTERM)\w+)$")
_OF_SRUN = re.compile(r"srun: error: (\S+): tasks? (\d+)\S*: (?!Exited|Terminated)(.+)$")


@dataclass(frozen=True)
class LostRank:
    """`rank` is None where the launcher of a node's ranks was killed, and they with it."""

    host: str
    rank: int | None
    how: str

    def __str__(self) -> str:
        who = "the launcher of the ranks" if self.rank is None else f"rank {self.rank}"
        return f"{who} on {self.host} {self.how}"


def find(run_dir: RunDir, job: str, launcher: str) -> LostRank | None:
    """Returns the first loss in the output of a job's last step; None where nothing was ended by a signal."""
    lines: list[str] = []
    with suppress(OSError):
        lines = run_dir.ended(job).read_text(errors="replace", encoding="utf-8").splitlines()
    return first_lost(lines, launcher)


def first_lost(lines: Iterable[str], launcher: str) -> LostRank | None:
    """A task of srun is a rank where `launcher` is srun, and else the agent of a node."""
    lines = list(lines)
    for line in lines:
        if found := _OF_AGENT.match(line):
            return LostRank(found[2], int(found[1]), found[3])
    for line in lines:
        if found := _OF_SRUN.match(line):
            return LostRank(found[1], int(found[2]) if launcher == "srun" else None, f"was lost: {found[3]}")
    return None
