"""The file that a self-proof writes, and its table. Never torch: login nodes and the performance table read it, too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import EXIT_USAGE, DataError
from gpt1_ds.common.files import parse_json, write_json
from gpt1_ds.common.text import shown
from gpt1_ds.common.units import amount

FORMAT = 1
NAME = "gpu-check"  # how file names begin
OF_A_JOB = f"{NAME}.json"  # in the folder of a job's check
MOST_BYTES = 1 << 20  # of a file


@dataclass(frozen=True)
class Record:
    """One promise: whether it holds, what was measured, and the limit that decides (None: only reported). The note says
    more; where the promise does not hold, also what to do.
    """

    name: str
    ok: bool
    value: float | None = None
    limit: float | None = None
    note: str = ""

    def __str__(self) -> str:
        level = "problem" if not self.ok else "note" if self.limit is None else "ok"
        value = "" if self.value is None else f" {self.value:.4g}"
        limit = "" if self.limit is None else f" (limit {self.limit:.4g})"
        return f"{level:8}{self.name}:{value}{limit}{'; ' * bool(value and self.note) or ' '}{self.note}".rstrip(" :")


@dataclass(frozen=True)
class Report:
    """What all ranks found together."""

    host: str  # of rank 0
    date: str  # UTC, as in 2026-11-22
    world: int
    devices: dict[str, int]  # host -> GPUs that it has; cores where there is none
    toolchain: dict[str, Any]  # of rank 0: versions and the device
    records: list[Record]

    @property
    def failing(self) -> list[Record]:
        return [record for record in self.records if not record.ok]

    @property
    def file_name(self) -> str:
        return f"{NAME}-{re.sub('[^A-Za-z0-9.-]', '_', self.host)}-{self.date}.json"

    def value(self, name: str) -> float | None:
        """Of the first record whose name begins so."""
        return next((record.value for record in self.records if record.name.startswith(name)), None)

    def with_records(self, more: list[Record]) -> Report:
        return Report(**{**vars(self), "records": [*self.records, *more]})


def lines(report: Report) -> Iterator[str]:
    """For a terminal: the toolchain, a line for each record, the verdict."""
    known = {key: value for key, value in report.toolchain.items() if value is not None}
    yield ", ".join(f"{key} {shown(str(value))}" for key, value in known.items())
    for record in report.records:
        yield shown(str(record))
    count = len(report.failing)
    promises = f"all {len(report.records)} checks hold" if not count else f"{count} of {len(report.records)} fail"
    yield f"{promises} ({amount(report.world, 'rank')} on {', '.join(report.devices)})"


def conclude(report: Report, out: Path | None) -> int:
    """Print the table, write the file (None: into this folder, by its own name); the program's exit code."""
    path = out or Path(report.file_name)
    print(*lines(report), sep="\n")
    write(report, path)
    print(path)
    return EXIT_USAGE if report.failing else 0


def write(report: Report, path: Path) -> None:
    write_json(path, {"format": FORMAT, **asdict(report)})


def read(path: Path) -> Report:
    """Raises DataError for a file that no self-proof wrote."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        raw = parse_json(data)
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']!r}, this program reads {FORMAT}")
        return _report(raw)
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: not a self-proof ({problem}); write it again: gpt1-ds doctor --gpu") from None


def _report(raw: Mapping[str, Any]) -> Report:
    values = {field.name: raw[field.name] for field in fields(Report)}
    kinds = {"host": str, "date": str, "world": int, "devices": dict, "toolchain": dict, "records": list}
    for name, kind in kinds.items():
        if not isinstance(values[name], kind):
            raise TypeError(f"{name} is no {kind.__name__}")
    values["records"] = [_record(one) for one in values["records"]]
    return Report(**values)


def _record(raw: Mapping[str, Any]) -> Record:
    record = Record(**raw)
    for number in (record.value, record.limit):
        if not (number is None or isinstance(number, int | float)):
            raise ValueError(f"{record.name}: {number!r} is no number")
    if not isinstance(record.ok, bool) or not isinstance(record.name, str) or not isinstance(record.note, str):
        raise TypeError(f"{record.name!r} is no record")
    return record
