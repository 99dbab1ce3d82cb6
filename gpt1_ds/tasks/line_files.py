"""Files whose lines are read together: a word a line, as CoNLL's, or two files whose lines are pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.tables import Table, TableRow, check_file, first_row, open_text, table_row

TAG_COLUMNS = ("tokens", "tags")


def tagged_columns(path: Path) -> Table:
    """Returns the sentences of a file with a word a line, blank lines between them, as CoNLL's: the first column is the
    word, the last one its tag; columns stand between tabs, or between blanks where there is no tab. A file of one
    column has no tags. Raises DataError for a file that is not there, or empty.
    """
    check_file(path)
    rows = _sentences(path)
    first = first_row(path, rows)
    columns = TAG_COLUMNS if first.problem or "tags" in first.values else TAG_COLUMNS[:1]
    return Table(str(path), columns, chain([first], rows))


def _sentences(path: Path) -> Iterator[TableRow]:
    lines: list[list[str]] = []
    first = 1
    with open_text(path, newline="\n") as stream:
        for number, line in enumerate(chain(stream, [""]), start=1):
            text = line.rstrip("\r\n")
            if text.strip() and not text.startswith("-DOCSTART-"):
                lines.append(text.split("\t") if "\t" in text else text.split())
            else:
                if lines:
                    yield _sentence(lines, f"line {first}")
                lines, first = [], number + 1


def _sentence(lines: list[list[str]], place: str) -> TableRow:
    widths = {len(cells) for cells in lines}
    if len(widths) > 1:
        return TableRow(
            place, problem=f"its lines have {min(widths)} to {max(widths)} columns; each is to have as many"
        )
    values = {"tokens": [cells[0] for cells in lines]}
    if widths != {1}:
        values["tags"] = [cells[-1] for cells in lines]
    return TableRow(place, values)


def parallel_lines(path: Path, columns: Sequence[str], needed: bool) -> Table:
    """Returns the lines of `path` and of the file beside it, whose endings are these two `columns`: line n of one goes
    with line n of the other. The second may be missing unless it is `needed`. Raises DataError where lines do not pair.
    """
    beside = path.with_suffix(f".{columns[1]}")
    files = [path, beside] if needed or beside.is_file() else [path]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{missing[0]}: no such file; {path.name} and {beside.name} are to lie side by side")
    counts = []
    for file in files:
        with open_text(file, newline="\n") as stream:
            counts.append(sum(1 for _ in stream))
    if counts[0] != counts[-1]:
        raise DataError(f"{path} has {counts[0]} lines, {beside.name} {counts[1]}; line n of one is to fit line n")
    if not counts[0]:
        raise DataError(f"{path}: is empty; it needs at least one row of data")
    return Table(str(path), tuple(columns[: len(files)]), _pairs_of_lines(files, columns))


def _pairs_of_lines(files: Sequence[Path], columns: Sequence[str]) -> Iterator[TableRow]:
    with ExitStack() as stack:
        streams = [stack.enter_context(open_text(file, newline="\n")) for file in files]
        for number, lines in enumerate(zip(*streams, strict=True), start=1):
            yield table_row(f"line {number}", tuple(columns[: len(files)]), [line.strip() for line in lines])
