"""CSV files that people may have edited: every cell that cannot be read is named, all of them at once."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator
from pathlib import Path

from gpt1_ds.common.errors import DataError

Row = dict[str, str | float | None]
SHOWN = 10  # problems named before the rest is counted


def read_csv(
    path: Path, *, required: Collection[str], numbers: Collection[str], positive: Collection[str] = ()
) -> list[Row]:
    """The rows, with columns of `numbers` as floats; an empty or not finite number is None.

    Raises DataError for a file without the `required` columns, text in a number, or a `positive` number that is not.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            head = reader.fieldnames or []
            lines = [(reader.line_num, line) for line in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a CSV file in UTF-8 ({error}); save it as one") from None
    missing = [name for name in required if name not in head]
    if missing:
        raise DataError(f"{path}: no column {', '.join(missing)}; its first line must name the columns")
    problems: list[str] = []
    rows: list[Row] = []
    for number, line in lines:
        row: Row = {name: text for name, text in line.items() if name is not None and not isinstance(text, list)}
        for name in numbers:
            row[name] = _number(str(line.get(name) or ""))
        problems += (f"{path}:{number}: {problem}" for problem in _problems(line, row, numbers, positive))
        rows.append(row)
    if len(problems) > SHOWN:
        problems[SHOWN:] = [f"{path}: and {len(problems) - SHOWN} more such problems"]
    DataError.raise_all(problems)
    return rows


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _problems(line: dict[str, str], row: Row, numbers: Collection[str], positive: Collection[str]) -> Iterator[str]:
    if None in line or None in line.values():
        yield f"{'more' if None in line else 'fewer'} values than the first line has columns"
        return
    for name in numbers:
        text = line.get(name, "").strip()
        if text and row[name] is None:
            try:
                float(text)  # nan and inf are numbers that say there is none
            except ValueError:
                yield f"{name} is {text!r}, not a number"
    for name in positive:
        value = row.get(name)
        if isinstance(value, float) and value <= 0:
            yield f"{name} is {value:g}; it must be above 0"
    for name in ("n", "d"):
        if name in positive and row.get(name) is None and line.get(name, "").strip().lower() in ("", "nan", "inf"):
            yield f"{name} is empty; every point needs it"
