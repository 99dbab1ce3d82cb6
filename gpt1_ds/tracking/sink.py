"""Where the records of a run are copied to, beside metrics.jsonl: W&B, TensorBoard, trackio. Rank 0 only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

GONE = "{} is off for the rest of this run ({}); metrics.jsonl has everything"  # (tracker, why)
Table = list[dict[str, Any]]


@dataclass(frozen=True)
class Reference:
    """Where a checkpoint lies; its files stay there."""

    name: str
    folder: Path
    aliases: list[str]
    metadata: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What is known at the end of a segment. A sink shows of it what its tracker can show."""

    summary: dict[str, Any]
    tables: dict[str, Table] = field(default_factory=dict)
    references: list[Reference] = field(default_factory=list)
    failed: bool = False


class Sink(Protocol):
    """No method raises, and none but `close` blocks: a tracker that fails costs one warning."""

    def log(self, record: dict[str, Any]) -> None:
        """One record of metrics.jsonl."""

    def rewind(self, step: int) -> None:
        """Steps after `step` are repeated, from now on; also said once at the beginning."""

    def close(self, ending: Ending) -> None:
        """The segment ends. Waits for the tracker for a limited time."""


def values_of(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record by the names that trackers show: `loss` of kind train is train/loss; a task's begin with
    task and split.
    """
    kind = record["kind"]
    where = f"{record['task']}/{record['split']}" if kind == "task" else kind
    found = {**record, **record.get("metrics", {})}
    return {f"{where}/{key}": value for key, value in found.items() if isinstance(value, (int, float))}
