"""Lines as examples of a task, for predictions: no header, no labels, and a quote is a letter of the text.

    text    the line is the text, tabs and all; for tasks of one text
    tsv     fields between tabs: text, then text2, then every choice, as far as the task has them
    jsonl   an object with text, and text2 and choices (a list) where the task has them; other keys are skipped

Text is that of the task's own column: a premise, a document; text2 the other text, or a choice task's question. A span
is asked for by `question` and `context`, in this order. What is to be tagged is a text with a blank between words, or
in an object the list `tokens`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from gpt1_ds.common.errors import DataError
from gpt1_ds.config import TaskConfig
from gpt1_ds.config.task import TABLE, ColumnsConfig
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.kinds import Regression
from gpt1_ds.tasks.registry import find_spec
from gpt1_ds.tasks.rows import BadRowError, TaskColumns
from gpt1_ds.tasks.tables import brief, unusable
from gpt1_ds.tasks.token_examples import row_reader

Format = Literal["text", "tsv", "jsonl"]
ENDINGS: Mapping[str, Format] = {".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
LONGEST = 1 << 20  # bytes of a line
SHOWN = 5  # keys of an object that a problem names
_BOM = b"\xef\xbb\xbf"


class LineReader:
    """`fields` are the names of what a line of `format` holds, in order."""

    def __init__(self, task: Task, config: TaskConfig, format: Format) -> None:
        spec = find_spec(config)
        question, choices = bool(spec.text2), task.layout == "choice"
        self.format = format
        first, second = task.line_fields
        self.fields = (first, *([second] if question else []))
        if choices:
            self.fields += tuple(f"choice {label}" for label in task.labels)
        if format == "text" and len(self.fields) > 1:
            raise DataError(f"{task.name}: reads {', '.join(self.fields)}; use --format tsv or jsonl")
        self._texts = 1 + question
        self._rows = row_reader(replace(spec, labels=task.labels), task.score_range)
        self._columns = TaskColumns(
            (first,), second if question else "", "", ("choices",) if choices else (), id="", group=""
        )

    def example(self, line: bytes, number: int) -> Example:
        """Returns the line `number`, 1 being the first, without its line feed. Raises BadRowError."""
        text = decoded(line, number)
        if self.format == "jsonl":
            return self._of_object(as_object(text), number)
        return self.of_fields([text] if self.format == "text" else text.split("\t"), number)

    def _of_object(self, values: Mapping[str, Any], number: int) -> Example:
        """Returns the example of an object. Raises BadRowError, with the keys that are there where those of columns are
        not.
        """
        try:
            return self.of_values(values, number)
        except BadRowError as problem:
            if any(field in values for field in self.fields):
                raise
            keys = ", ".join(brief(key) for key in itertools.islice(values, SHOWN)) or "none"
            raise BadRowError(f"{problem}; the keys of this object are {keys}") from None

    def of_fields(self, fields: Sequence[str], number: int = 1) -> Example:
        """Returns the example that `fields` make up. Raises BadRowError."""
        if len(fields) != len(self.fields):
            expected = "1 is" if len(self.fields) == 1 else f"{len(self.fields)} are"
            count = f"{len(fields)} field{'s' * (len(fields) != 1)}"
            raise BadRowError(f"{count} where {expected} expected: {', '.join(self.fields)}")
        texts, choices = fields[: self._texts], fields[self._texts :]
        return self.of_values({**dict(zip(self.fields, texts, strict=False)), "choices": list(choices)}, number)

    def of_values(self, values: Mapping[str, Any], number: int) -> Example:
        """Returns the example of an object with text, text2 and choices. Raises BadRowError."""
        return self._rows.example(values, self._columns, number, needs_label=False)


def decoded(line: bytes, number: int) -> str:
    """Returns the text of line `number`, 1 being the first, without its line end. Raises BadRowError for one without
    text.
    """
    if len(line) > LONGEST:
        raise BadRowError(f"is longer than {LONGEST} bytes")
    text = line.removeprefix(_BOM if number == 1 else b"").removesuffix(b"\r").decode(errors="surrogateescape")
    if problem := unusable(text):
        raise BadRowError(problem)
    if not text.strip():
        raise BadRowError("is empty")
    return text


def read_texts(path: Path) -> list[str]:
    """Returns a text of each line of a file or pipe, of .jsonl the key `text` of each object. Raises DataError for a
    file or line without one.
    """
    kind: Format = "jsonl" if ENDINGS.get(path.suffix.lower()) == "jsonl" else "text"
    spec = TaskConfig(name=TABLE, kind="regression", columns=ColumnsConfig(text="text"))
    reader = LineReader(Regression(TABLE, "single", (), ("spearman",)), spec, kind)
    texts: list[str] = []
    with path.open("rb") as lines:
        pieces = iter(partial(lines.readline, LONGEST + 2), b"")  # of a line without an end no more is held
        for number, line in enumerate(pieces, start=1):
            try:
                texts += reader.example(line.rstrip(b"\n"), number).texts
            except BadRowError as error:
                raise DataError(f"{path} line {number}: {error}") from None
    if not texts:
        raise DataError(f"{path}: is empty; it is to hold a text a line")
    return texts


def choose_format(task: Task, name: str, first: bytes) -> Format:
    """Returns what the lines of the file `name` are, empty for a pipe: by its ending; else JSON lines, if the `first`
    is an object; else what the task has, a text or several fields. Raises DataError for CSV.
    """
    ending = Path(name).suffix.lower()
    if ending == ".csv":
        raise DataError(f"{name}: CSV is not read here; write it as .tsv or .jsonl without a header, or say --format")
    if ending in ENDINGS:
        return ENDINGS[ending]
    try:
        as_object(first.removeprefix(_BOM).decode())
    except (BadRowError, UnicodeDecodeError):
        return "text" if task.layout == "single" else "tsv"
    return "jsonl"


def as_object(text: str) -> dict[str, Any]:
    """Returns the JSON object that `text` is. Raises BadRowError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise BadRowError("not a JSON object")
    return value
