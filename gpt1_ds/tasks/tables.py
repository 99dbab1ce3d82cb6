"""Rows of a file, one after the other, whatever they mean: CSV, TSV, JSON lines or JSON.

UTF-8 with or without BOM, LF or CRLF. Quotes enclose a field in .csv only: in GLUE's .tsv files a quote is a letter of
the text, and a reader that takes it for more swallows rows. A place is the line that a row begins on, the header
included, or the number of a JSON record, both from 1. Blank lines are skipped.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar

from gpt1_ds.common.errors import DataError

ENDINGS = {".csv": "csv", ".tsv": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}
RECORDS = (".csv", ".jsonl", ".ndjson", ".json")  # endings of files with a row, or an object, a sentence
LONGEST_SHOWN = 40  # letters
LOOKED_AT = 1000  # records whose keys are the columns of a JSON table
LONGEST_CELL = 1 << 30  # letters; a book may be one
_UNUSABLE = re.compile("[\0\ud800-\udfff]")  # surrogates stand for bytes that are not UTF-8
Row = TypeVar("Row")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# The columns of a file without header, given the cells of its first row; None where that row is a header.
Naming = Callable[[list[str]], tuple[str, ...] | None]


@dataclass(frozen=True)
class TableRow:
    """A row, or what is wrong with it."""

    place: str  # in the file
    values: Mapping[str, Any] = field(default_factory=dict)  # by column
    problem: str = ""  # where there is one, `values` is empty


@dataclass(frozen=True)
class Table:
    """The rows of a file, which can be read once."""

    path: str
    columns: tuple[str, ...]
    rows: Iterator[TableRow]


def open_table(path: Path, kind: str = "auto", quoting: str = "auto", naming: Naming = lambda cells: None) -> Table:
    """Returns the table in `path`; `kind` and `quoting` are those of `task.format` and `task.quoting`.

    Raises DataError when the file is missing, empty, of no known kind, not UTF-8, names a column twice, or is no JSON.
    """
    check_file(path)
    kind = ENDINGS.get(path.suffix.lower(), "") if kind == "auto" else kind
    if not kind:
        raise DataError(f"{path}: of no known kind; rename it to end in {', '.join(ENDINGS)}, or set task.format")
    with path.open("rb") as stream:
        start = stream.read(2)
    if start in _UTF_16:
        raise DataError(f"{path}: is UTF-16; save it as UTF-8")
    if kind in ("json", "jsonl"):
        table = _json_table(path, _json_lines(path) if kind == "jsonl" else _json_records(path))
    else:
        table = _delimited(path, "," if kind == "csv" else "\t", kind if quoting == "auto" else quoting, naming)
    return replace(table, rows=chain([first_row(path, table.rows)], table.rows))


def check_file(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"{path}: no such file; look at task.path and at task.train, dev and test")


def first_row(path: Path, rows: Iterator[Row]) -> Row:
    """Returns the first of the rows in `path`. Raises DataError where there is none."""
    for row in rows:
        return row
    raise DataError(f"{path}: is empty; it needs at least one row of data")


def divided(table: Table, columns: tuple[str, ...], listed: Set[tuple[str, ...]], inside: bool) -> Table:
    """Returns the rows whose values in `columns` are `listed`, or with `inside=False` the others, among them those with
    a problem.
    """

    def is_listed(row: TableRow) -> bool:
        return tuple(str(row.values.get(column)) for column in columns) in listed

    return replace(table, rows=(row for row in table.rows if is_listed(row) == inside))


def open_text(path: Path, newline: str | None = None) -> IO[str]:
    """Opens `path` as text without BOM; bytes that are not UTF-8 become lone surrogates."""
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def brief(text: str) -> str:
    """Returns `text` as a message can show it: short, on one line."""
    shown = text if text.isprintable() else repr(text)[1:-1]
    return shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."


def unusable(text: str) -> str:
    """Returns why `text` cannot be used because of its letters; empty where it can."""
    found = _UNUSABLE.search(text)
    if found is None:
        return ""
    return "holds a NUL byte" if found[0] == "\0" else "holds bytes that are not UTF-8"


def _delimited(path: Path, delimiter: str, quoting: str, naming: Naming) -> Table:
    records = _quoted(path, delimiter) if quoting == "csv" else _plain(path, delimiter)
    first = first_row(path, records)
    columns = naming(first[1])
    if columns is None:
        columns = tuple(name.strip() for name in first[1])
        twice = sorted({name for name in columns if name and columns.count(name) > 1})
        if twice:
            raise DataError(f"{path}: its header names {', '.join(map(brief, twice[:5]))} twice; rename one")
    else:
        records = chain([first], records)
    return Table(str(path), columns, (table_row(f"line {line}", columns, cells) for line, cells in records))


def table_row(place: str, columns: tuple[str, ...], cells: list[str]) -> TableRow:
    if problem := next(filter(None, map(unusable, cells)), ""):
        return TableRow(place, problem=problem)
    if len(cells) != len(columns):
        return TableRow(place, problem=f"{len(cells)} columns where {len(columns)} are expected")
    return TableRow(place, dict(zip(columns, cells, strict=True)))


def _plain(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, cells); only a line feed ends a line, with or without a carriage return before it."""
    with open_text(path, newline="\n") as stream:
        for number, line in enumerate(stream, start=1):
            text = line.removesuffix("\n").removesuffix("\r")
            if text:
                yield number, text.split(delimiter)


def _quoted(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line the record begins on, cells)."""
    with open_text(path, newline="") as stream:
        csv.field_size_limit(LONGEST_CELL)
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise DataError(
                    f"{path} line {line}: not readable as CSV ({error}); fix the quotes, or set task.quoting=none"
                ) from None
            if cells is None:
                return
            if cells:
                yield line, cells


def _json_lines(path: Path) -> Iterator[tuple[str, Any, str]]:
    """Yields (place, value, problem)."""
    with open_text(path, newline="\n") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                place = f"line {number}"
                try:
                    yield place, json.loads(line), unusable(line)
                except (ValueError, RecursionError) as error:
                    yield place, None, f"not JSON ({error})"


def _json_records(path: Path) -> Iterator[tuple[str, Any, str]]:
    """Yields (place, value, problem) of a list of records, or of a mapping whose values are records."""
    try:
        values = json_value(path)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: not readable as JSON ({error}); if it has one object a line, call it .jsonl"
        ) from None
    if not isinstance(values, (list, dict)):
        raise DataError(f"{path}: holds neither a list nor a mapping of records")
    for number, value in enumerate(values.values() if isinstance(values, dict) else values, start=1):
        yield f"record {number}", value, ""


def json_value(path: Path) -> Any:
    """Returns the one value in `path`. Raises ValueError when it is no JSON or no UTF-8."""
    return json.loads(path.read_bytes().decode("utf-8-sig"))


def _json_table(path: Path, records: Iterator[tuple[str, Any, str]]) -> Table:
    """Returns records as a table, whose columns are the keys of the first LOOKED_AT: one record may lack a key whose
    value is missing.
    """
    before = list(islice(records, LOOKED_AT))
    columns = dict.fromkeys(str(key) for _, value, _ in before if isinstance(value, dict) for key in value)
    return Table(str(path), tuple(columns), (_record(*record) for record in chain(before, records)))


def _record(place: str, value: Any, problem: str) -> TableRow:
    if not problem and not isinstance(value, dict):
        problem = "not an object with a key per column"
    return TableRow(place, problem=problem) if problem else TableRow(place, value)
