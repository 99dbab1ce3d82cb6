"""What W&B wrote offline, read back from its own files."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 32768  # the files are LevelDB logs of protocol buffers, behind a header of 7 bytes
HEADER = 7


@dataclass
class Written:
    """One segment."""

    folder: Path
    id: str = ""
    job_type: str = ""
    entity: str = ""
    sweep: str = ""  # id of the sweep that it is a trial of
    group: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    points: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    x_axes: dict[str, str] = field(default_factory=dict)  # metric or pattern -> its x axis
    references: list[Any] = field(default_factory=list)
    exit_code: int | None = None  # None: the file has no end

    def values(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of every point with `key`, in the order they were written."""
        step = f"{key.rpartition('/')[0]}/step"
        return [(point[step], point[key]) for point in self.points if key in point]


def read_segments(run: Path) -> list[Written]:
    """The segments of a run folder, oldest first."""
    folders = sorted((run / "wandb").glob("offline-run-*"))
    return [read_segment(folder) for folder in folders]


def read_segment(folder: Path) -> Written:
    from wandb.proto.wandb_internal_pb2 import Record

    found = Written(folder)
    (file,) = folder.glob("run-*.wandb")
    for content in _contents(file.read_bytes()):
        record = Record()
        record.ParseFromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            found.id, found.job_type, found.group, found.tags = run.run_id, run.job_type, run.run_group, [*run.tags]
            found.entity, found.sweep = run.entity, run.sweep_id
            found.config |= {item.key: json.loads(item.value_json) for item in run.config.update}
        elif kind == "config":
            found.config |= {item.key: json.loads(item.value_json) for item in record.config.update if item.key}
        elif kind == "history":
            found.points.append({_key(item): json.loads(item.value_json) for item in record.history.item})
        elif kind == "summary":
            found.summary |= {_key(item): json.loads(item.value_json) for item in record.summary.update}
        elif kind == "metric":
            found.x_axes[record.metric.glob_name or record.metric.name] = record.metric.step_metric
        elif kind == "artifact":
            found.references.append(record.artifact)
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def _key(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


def _contents(data: bytes) -> list[bytes]:
    """The whole records of a log; a torn end is skipped."""
    assert data[:4] == b":W&B"
    records, part, at = [], b"", HEADER
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        piece = data[at + 7 : at + 7 + size]
        if kind == 0 or len(piece) < size:
            break
        part = piece if kind in (1, 2) else part + piece
        if kind in (1, 4):
            records.append(part)
        at += 7 + size
    return records
