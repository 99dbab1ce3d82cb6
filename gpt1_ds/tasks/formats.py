"""Rows of a file, one after the other, whatever they mean: CSV, TSV, JSON lines or JSON; RACE's folders of passages,
COPA's XML, and the `datasets` library (`task.path=datasets:NAME[:SUBSET]`, or `datasets:` and a folder it has
saved).

UTF-8 with or without BOM, LF or CRLF. Quotes enclose a field in .csv only: in GLUE's .tsv files a quote is a letter of
the text, and a reader that takes it for more swallows rows. A place is the line that a row begins on, the header
included, or the number of a JSON record, both from 1. Blank lines are skipped.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar
from xml.etree import ElementTree

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.remote import limit_hub_clients

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
    """`values` by column; where `problem` says what is wrong with the row, they are empty."""

    place: str
    values: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Table:
    """`rows` can be gone through once."""

    path: str
    columns: tuple[str, ...]
    rows: Iterator[TableRow]


def open_table(path: Path, kind: str = "auto", quoting: str = "auto", naming: Naming = lambda cells: None) -> Table:
    """The table in `path`; `kind` and `quoting` are those of `task.format` and `task.quoting`.

    Raises DataError when the file is missing, empty, of no known kind, not UTF-8, names a column twice, or is no JSON.
    """
    _check_file(path)
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
    return replace(table, rows=chain([_first(path, table.rows)], table.rows))


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"{path}: no such file; look at task.path and at task.train, dev and test")


def _first(path: Path, rows: Iterator[Row]) -> Row:
    """The first of the rows in `path`. Raises DataError where there is none."""
    for row in rows:
        return row
    raise DataError(f"{path}: is empty; it needs at least one row of data")


def divided(table: Table, columns: tuple[str, ...], listed: Set[tuple[str, ...]], inside: bool) -> Table:
    """The rows whose values in `columns` are `listed`, or else the others, among them those with a problem."""
    key = lambda row: tuple(str(row.values.get(column)) for column in columns)  # noqa: E731
    return replace(table, rows=(row for row in table.rows if (key(row) in listed) == inside))


def open_text(path: Path, newline: str | None = None) -> IO[str]:
    """`path` as text without BOM; bytes that are not UTF-8 become lone surrogates."""
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def brief(text: str) -> str:
    """`text` as a message can show it: short, on one line."""
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
    first = _first(path, records)
    columns = naming(first[1])
    if columns is None:
        columns = tuple(name.strip() for name in first[1])
        twice = sorted({name for name in columns if name and columns.count(name) > 1})
        if twice:
            raise DataError(f"{path}: its header names {', '.join(map(brief, twice[:5]))} twice; rename one")
    else:
        records = chain([first], records)
    return Table(str(path), columns, (_row(f"line {line}", columns, cells) for line, cells in records))


def _row(place: str, columns: tuple[str, ...], cells: list[str]) -> TableRow:
    if problem := next(filter(None, map(unusable, cells)), ""):
        return TableRow(place, problem=problem)
    if len(cells) != len(columns):
        return TableRow(place, problem=f"{len(cells)} columns where {len(columns)} are expected")
    return TableRow(place, dict(zip(columns, cells, strict=True)))


def _plain(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells); only a line feed ends a line, with or without a carriage return before it."""
    with open_text(path, newline="\n") as stream:
        for number, line in enumerate(stream, start=1):
            text = line.removesuffix("\n").removesuffix("\r")
            if text:
                yield number, text.split(delimiter)


def _quoted(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line the record begins on, cells)."""
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
    """(place, value, problem)."""
    with open_text(path, newline="\n") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                place = f"line {number}"
                try:
                    yield place, json.loads(line), unusable(line)
                except (ValueError, RecursionError) as error:
                    yield place, None, f"not JSON ({error})"


def _json_records(path: Path) -> Iterator[tuple[str, Any, str]]:
    """(place, value, problem) of a list of records, or of a mapping whose values are records."""
    try:
        values = read_json(path)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: not readable as JSON ({error}); if it has one object a line, call it .jsonl"
        ) from None
    if not isinstance(values, (list, dict)):
        raise DataError(f"{path}: holds neither a list nor a mapping of records")
    for number, value in enumerate(values.values() if isinstance(values, dict) else values, start=1):
        yield f"record {number}", value, ""


def read_json(path: Path) -> Any:
    """The one value in `path`. Raises ValueError when it is no JSON or no UTF-8."""
    return json.loads(path.read_bytes().decode("utf-8-sig"))


def _json_table(path: Path, records: Iterator[tuple[str, Any, str]]) -> Table:
    """The columns are the keys of the first records: one of them may lack a key whose value is missing."""
    before = list(islice(records, LOOKED_AT))
    columns = dict.fromkeys(str(key) for _, value, _ in before if isinstance(value, dict) for key in value)
    return Table(str(path), tuple(columns), (_record(*record) for record in chain(before, records)))


def _record(place: str, value: Any, problem: str) -> TableRow:
    if not problem and not isinstance(value, dict):
        problem = "not an object with a key per column"
    return TableRow(place, problem=problem) if problem else TableRow(place, value)


SQUAD_COLUMNS = ("id", "question", "context", "answers", "group")
TAG_COLUMNS = ("tokens", "tags")


def squad_json(path: Path) -> Table:
    """Every question of SQuAD's JSON, 1.1 or 2.0: articles, their paragraphs, questions about each; else the records of
    any JSON. Raises DataError when the file is no JSON.
    """
    _check_file(path)
    try:
        values = read_json(path)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(values, dict) or not isinstance(values.get("data"), list):
        return open_table(path, "json")
    return Table(str(path), SQUAD_COLUMNS, _questions(values["data"]))


def _questions(articles: list[Any]) -> Iterator[TableRow]:
    for number, article in enumerate(articles, start=1):
        try:
            paragraphs = [(one["context"], list(one["qas"])) for one in article["paragraphs"]]
        except (KeyError, TypeError) as error:
            yield TableRow(f"article {number}", problem=f"damaged ({type(error).__name__}: {error})")
            continue
        for context, questions in paragraphs:
            for question in questions:
                yield _question(question, context, f"article {number}")


def _question(values: Any, context: Any, place: str) -> TableRow:
    try:
        identity, asked, answers = str(values["id"]), values["question"], values.get("answers")
        if answers is not None:
            answers = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
    except (KeyError, TypeError, AttributeError) as error:
        return TableRow(place, problem=f"a question is damaged ({type(error).__name__}: {error})")
    if values.get("is_impossible"):
        answers = {"text": [], "answer_start": []}
    row = dict(zip(SQUAD_COLUMNS, (identity, asked, context, answers, ""), strict=True))
    return TableRow(f"{place}, question {brief(identity)}", row)


def tagged_columns(path: Path) -> Table:
    """Sentences of a file with a word a line, blank lines between them, as CoNLL's: the first column is the word, the
    last one its tag; columns stand between tabs, or between blanks where there is no tab. A file of one column has no
    tags. Raises DataError for a file that is not there, or empty.
    """
    _check_file(path)
    rows = _sentences(path)
    first = _first(path, rows)
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
    """The lines of `path` and of the file beside it, whose endings are these two `columns`: line n of one goes with
    line n of the other. The second may be missing unless it is `needed`. Raises DataError where lines do not pair.
    """
    beside = path.with_suffix(f".{columns[1]}")
    files = [path, beside] if needed or beside.is_file() else [path]
    missing = [one for one in files if not one.is_file()]
    if missing:
        raise DataError(f"{missing[0]}: no such file; {path.name} and {beside.name} are to lie side by side")
    counts = []
    for one in files:
        with open_text(one, newline="\n") as stream:
            counts.append(sum(1 for _ in stream))
    if len({*counts}) > 1:
        raise DataError(f"{path} has {counts[0]} lines, {beside.name} {counts[1]}; line n of one is to fit line n")
    if not counts[0]:
        raise DataError(f"{path}: is empty; it needs at least one row of data")
    return Table(str(path), tuple(columns[: len(files)]), _pairs_of_lines(files, columns))


def _pairs_of_lines(files: Sequence[Path], columns: Sequence[str]) -> Iterator[TableRow]:
    with ExitStack() as stack:
        streams = [stack.enter_context(open_text(one, newline="\n")) for one in files]
        for number, lines in enumerate(zip(*streams, strict=True), start=1):
            yield _row(f"line {number}", tuple(columns[: len(files)]), [line.strip() for line in lines])


RACE_COLUMNS = ("id", "article", "question", "options", "answer", "group")
HUB = "datasets:"  # before the name of a data set of the library
COPA_COLUMNS = ("id", "premise", "choice1", "choice2", "question", "label")


def race_folder(folder: Path) -> Table:
    """Every question of a folder like RACE/train/middle: one .txt a passage, holding JSON. The group is its name.

    Raises DataError when there is no passage. A damaged passage, or one whose lists differ in length, is a bad row.
    """
    paths = sorted(folder.glob("*.txt"), key=lambda path: (len(path.name), path.name))  # 2.txt before 10.txt
    if not paths:
        raise DataError(f"{folder}: holds no passage; RACE has one .txt file per passage here")
    return Table(str(folder), RACE_COLUMNS, (row for path in paths for row in _passage(path, folder.name)))


def _passage(path: Path, group: str) -> Iterator[TableRow]:
    try:
        values: Any = read_json(path)
        article, questions, options = values["article"], values["questions"], values["options"]
        answers = values.get("answers", [None] * len(questions))  # None: not published
        lists = list(zip(questions, options, answers, strict=True))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        yield TableRow(path.name, problem=f"damaged ({type(error).__name__}: {error})")
        return
    for number, (question, choices, answer) in enumerate(lists, start=1):
        identity = f"{values.get('id', path.name)}-{number}"
        row = (identity, article, question, choices, answer, group)
        yield TableRow(f"{path.name} question {number}", dict(zip(RACE_COLUMNS, row, strict=True)))


def copa_xml(path: Path) -> Table:
    """The items of COPA's XML, named as in its JSON lines. Raises DataError when the file is no XML or has no item."""
    text = path.read_bytes()
    if b"<!ENTITY" in text:  # a few bytes of nested entities grow without bound
        raise DataError(f"{path}: defines XML entities, which COPA's files do not; not read")
    try:
        items = list(ElementTree.fromstring(text).iter("item"))
    except ElementTree.ParseError as error:
        raise DataError(f"{path}: not readable as XML ({error})") from None
    if not items:
        raise DataError(f"{path}: is empty; COPA has one <item> per question here")
    return Table(str(path), COPA_COLUMNS, (_item(number, item) for number, item in enumerate(items, start=1)))


def _item(number: int, item: ElementTree.Element) -> TableRow:
    identity, answer = item.get("id", str(number)), item.get("most-plausible-alternative")
    texts = [item.findtext(tag) for tag in ("p", "a1", "a2")]
    if None in texts or len(item.findall("*")) != len(texts):
        return TableRow(f"item {identity}", problem="needs one <p>, one <a1> and one <a2>")
    label = {None: None, "1": "0", "2": "1"}.get(answer, answer)  # counted from 0, as in the JSON lines
    row = (identity, *texts, item.get("asks-for"), label)
    return TableRow(f"item {identity}", dict(zip(COPA_COLUMNS, row, strict=True)))


def hub_tables(
    path: str, names: Mapping[str, str], asked: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Iterator[Table]]]:
    """(split, its table) for every split of `names` (ours -> the library's) that the data set has.

    Raises DataError when the library is not installed or cannot load the data set, and when `train` or a split that
    was asked for by name is not there.
    """
    loaded = _load_hub(path.removeprefix(HUB))
    for split, name in names.items():
        parts = name.split("+")
        if all(part in loaded for part in parts):
            yield split, (_hub_table(f"{path} {part}", loaded[part]) for part in parts)
        elif split == "train" or asked.get(split):
            raise DataError(f"{path}: has no split {name}, only {', '.join(loaded)}; name others with task.{split}")


def _load_hub(name: str) -> Mapping[str, Any]:
    try:
        import datasets
    except ModuleNotFoundError:
        raise DataError("task.path=datasets:... needs the datasets library; pip install 'gpt1-ds[data]'") from None
    except ImportError as error:
        raise DataError(f"task.path=datasets:{name}: the datasets library cannot be imported: {error}") from None
    try:
        if Path(name).is_dir():
            loaded = datasets.load_from_disk(name)
        else:
            limit_hub_clients()
            loaded = datasets.load_dataset(*name.split(":"))
    except Exception as error:  # whatever the library, the network or a data set's own code raises
        first = str(error).partition("\n")[0]
        raise DataError(
            f"{HUB}{name}: the datasets library cannot load it ({type(error).__name__}: {first:.200})"
        ) from None
    if not isinstance(loaded, Mapping):
        raise DataError(f"{HUB}{name}: holds one split without a name; save a DatasetDict with train and validation")
    return loaded


def _hub_table(name: str, split: Any) -> Table:
    classes = classes_of(split.features)
    rows = (TableRow(f"record {number}", with_names(values, classes)) for number, values in enumerate(split, start=1))
    return Table(name, tuple(split.column_names), rows)


def classes_of(features: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """The names of the classes of each column that holds their numbers."""
    kinds = {column: getattr(kind, "feature", kind) for column, kind in features.items()}  # of a list, of its members
    return {column: kind.names for column, kind in kinds.items() if hasattr(kind, "names")}


def with_names(values: Mapping[str, Any], classes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A row with the classes' names for their numbers; -1, for unknown, stays."""
    named: dict[str, Any] = {}
    for column, names in classes.items():
        value = values[column]
        if isinstance(value, int) and value >= 0:
            named[column] = names[value]
        elif isinstance(value, list):
            named[column] = [names[one] if isinstance(one, int) and one >= 0 else one for one in value]
    return {**values, **named}
