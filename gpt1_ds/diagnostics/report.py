"""The file that a self-proof writes, and its table. Never torch: login nodes and the performance table read it, too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import EXIT_USAGE, DataError
from gpt1_ds.common.files import parse_json, write_json
from gpt1_ds.common.text import amount, shown

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
    not_reached: list[str] = field(default_factory=list)  # checks for which there was no time, or that a kill cut off

    @property
    def holds(self) -> bool:
        """Whether every check was made and none fails."""
        return not self.failing and not self.not_reached

    @property
    def failing(self) -> list[Record]:
        return [record for record in self.records if not record.ok]

    @property
    def file_name(self) -> str:
        return report_name(self.host, self.date)

    def value(self, name: str) -> float | None:
        """Returns the value of the first record whose name begins so."""
        return next((record.value for record in self.records if record.name.startswith(name)), None)

    def with_records(self, more: list[Record]) -> Report:
        return replace(self, records=[*self.records, *more])


def report_name(host: str, date: str) -> str:
    """Where a report of this host and day goes, if nobody says where."""
    return f"{NAME}-{re.sub('[^A-Za-z0-9.-]', '_', host)}-{date}.json"


@dataclass
class Ledger:
    """The file of a self-proof while it grows. Each record is in it, and on the terminal, as soon as it is found: what
    a kill leaves says what was not reached.
    """

    path: Path
    until: float = float("inf")  # seconds since 1970: no check begins that might end later
    later: Sequence[str] = ()  # checks that other processes make afterwards
    shown: int | None = 0  # lines on the terminal so far; None: there will be none

    def write(self, report: Report, waiting: Sequence[str] = ()) -> None:
        """`waiting` are the checks that are under way or still to come."""
        write(replace(report, not_reached=[*waiting, *self.later]), self.path)
        if self.shown is None:
            return
        new = [*_head(report), *map(_line, report.records)][self.shown :]
        self.shown += len(new)
        if new:
            print(*new, sep="\n", flush=True)


def lines(report: Report) -> Iterator[str]:
    """For a terminal: the toolchain, a line for each record, what was not reached, the verdict."""
    yield from _head(report)
    yield from map(_line, report.records)
    yield from verdict(report)


def verdict(report: Report) -> Iterator[str]:
    """What was not reached, and what that makes of the whole."""
    yield from (f"{'missing':8}{shown(name)}: not reached" for name in report.not_reached)
    count, missing = len(report.failing), len(report.not_reached)
    promises = f"all {len(report.records)} checks hold" if not count else f"{count} of {len(report.records)} fail"
    promises += f", {missing} more were not reached" * bool(missing)
    yield f"{promises} ({amount(report.world, 'rank')} on {', '.join(report.devices)})"


def _head(report: Report) -> Iterator[str]:
    known = {key: value for key, value in report.toolchain.items() if value is not None}
    if known:
        yield ", ".join(f"{key} {shown(str(value))}" for key, value in known.items())


def _line(record: Record) -> str:
    return shown(str(record))


def conclude(report: Report, out: Path | None) -> int:
    """Print the table, write the file (None: into this folder, by its own name); the program's exit code."""
    path = out or Path(report.file_name)
    print(*lines(report), sep="\n")
    write(report, path)
    print(path)
    return 0 if report.holds else EXIT_USAGE


def write(report: Report, path: Path) -> None:
    write_json(path, {"format": FORMAT, **asdict(report)})


def read_report(path: Path) -> Report:
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
    raw = {"not_reached": [], **raw}  # files of earlier versions have none
    values = {field.name: raw[field.name] for field in fields(Report)}
    kinds = {"host": str, "date": str, "world": int, "devices": dict, "toolchain": dict, "records": list}
    kinds["not_reached"] = list
    for name, kind in kinds.items():
        if not isinstance(values[name], kind):
            raise TypeError(f"{name} is no {kind.__name__}")
    if not all(isinstance(name, str) for name in values["not_reached"]):
        raise TypeError("not_reached names no checks")
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
