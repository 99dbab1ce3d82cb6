"""Where a run lives and what it is called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_NAME = "letters, digits, '.', '_', '-' and '/' only, no '..'"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    name: str = ""  # the run folder is <dir>/<name>; empty: the last config file's stem, else "run"
    dir: str = "runs"  # folder that holds the runs
    seed: int = 1  # of weights, dropout and data order; any integer from 0 to 2**63-1
    share: Literal["private", "group"] = "private"  # who may read the run folder: its owner, or the group too

    def problems(self) -> Iterator[str]:
        if not 0 <= self.seed < 2**63:
            yield f"run.seed={self.seed} is out of range; choose 0 to 2**63-1"
        parts = self.name.split("/")
        legal = all(character.isalnum() or character in "._-/" for character in self.name)
        if self.name and (not legal or any(part in ("", ".", "..") for part in parts)):
            yield f"run.name={self.name!r} cannot name a folder; use {_NAME}"
