"""Rows of a table as examples of a task: which column is what, and what is wrong with a row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.text import is_missing
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.specs import Names, Spec
from gpt1_ds.tasks.tables import Naming, Table, brief, unusable

FEW = 5  # bad rows that are named one by one


class BadRowError(ValueError):
    """Why a row is no example."""


@dataclass(frozen=True)
class TaskColumns:
    """The columns of one table that a task reads; empty where it has none."""

    text: Names
    text2: str
    label: str
    choices: Names
    id: str
    group: str
    begin: str = ""  # of every choice


def find_columns(table: Table, spec: Spec, needs_label: bool) -> TaskColumns:
    """Raises DataError naming a column that is missing, and those that are there."""

    def first(alternatives: tuple[Names, ...]) -> Names:
        return next((names for names in alternatives if set(names) <= set(table.columns)), ())

    def one(names: Names) -> str:
        return "".join(first(tuple((name,) for name in names)))

    found = TaskColumns(
        *(first(spec.text), one(spec.text2), one(spec.label), first(spec.choices), one(spec.id), one(spec.group)),
        begin=one(spec.begin),
    )
    wanted = [("text", " and ".join(spec.text[0]), found.text)]
    wanted += [("text2", spec.text2[0], (found.text2,))] if spec.text2 else []
    wanted += [("label", spec.label[0], (found.label,))] if needs_label else []
    wanted += [("choices", " and ".join(spec.choices[0]), found.choices)] if spec.choices else []
    wanted += [("choices", spec.begin[0], (found.begin,))] if spec.begin else []
    there = ", ".join(map(brief, table.columns[:20])) or "none"
    DataError.raise_all(
        f"{table.path}: has no column {name}; its columns are {there}; set task.columns.{key}"
        for key, name, columns in wanted
        if not any(columns)
    )
    return found


def column_naming(spec: Spec, header: bool) -> Naming:
    """Returns how a file of this task that has no header is recognised: its first row does not name the first text's
    column.
    """

    def names(cells: list[str]) -> tuple[str, ...] | None:
        if not header:
            return tuple(map(str, range(len(cells))))
        if any(set(text) <= {cell.strip() for cell in cells} for text in spec.text):
            return None
        return next((columns for columns in spec.headerless if len(columns) == len(cells)), None)

    return names


class RowReader:
    """Examples of all tables of a task. `problems` and `left_out` grow while `read` is gone through."""

    def __init__(self, spec: Spec, score_range: Sequence[float]) -> None:
        self.problems: list[str] = []
        self.left_out = 0  # rows that have no label although their file does
        self._spec = spec
        self._range = score_range
        self._choices = len(spec.labels) if spec.choices else 0  # per example; 0: as many as the first row has

    def read(self, tables: Iterable[Table], needs_label: bool) -> tuple[Example, ...]:
        """`needs_label` is false for test files. Rows without an id column are numbered."""
        examples: list[Example] = []
        numbers = itertools.count()
        for table in tables:
            columns = find_columns(table, self._spec, needs_label)
            for row, number in zip(table.rows, numbers, strict=False):
                try:
                    if row.problem:
                        raise BadRowError(row.problem)
                    example = self.example(row.values, columns, number, needs_label)
                except BadRowError as problem:
                    self.problems.append(f"{table.path} {row.place}: {problem}")
                    continue
                if needs_label and not example.is_labelled:
                    self.left_out += 1
                else:
                    examples.append(example)
        return tuple(examples)

    def check(self) -> None:
        """Raises one DataError when there were bad rows, naming the first few."""
        if self.problems:
            more = [f"and {len(self.problems) - FEW} more"] if len(self.problems) > FEW else []
            count = f"{len(self.problems)} row{'s' if len(self.problems) > 1 else ''}"
            raise DataError(
                *self.problems[:FEW],
                *more,
                f"{count} cannot be read; fix them, or leave them out with task.bad_rows=skip",
            )

    def example(self, values: Mapping[str, Any], columns: TaskColumns, number: int, needs_label: bool) -> Example:
        """Returns one row as an example. Raises BadRowError."""
        texts = [" ".join(self._read_text(values, name) for name in columns.text)]
        if columns.text2:
            text2 = self._read_text(values, columns.text2)
            texts.append(self._spec.phrases.get(text2, text2))
        if not any(texts):
            raise BadRowError(f"{' and '.join(filter(None, (*columns.text, columns.text2)))} is missing")
        choices = self._read_choices(values, columns.choices) if columns.choices else ()
        if columns.begin and not is_missing(values.get(columns.begin)):
            choices = tuple(f"{text_of(values, columns.begin)} {choice}" for choice in choices)
        label, score = self._answer(values.get(columns.label), columns.label, needs_label)
        return Example(
            id=text_of(values, columns.id) if columns.id else str(number),
            texts=tuple(texts),
            choices=choices,
            label=label,
            score=score,
            group="" if is_missing(values.get(columns.group)) else text_of(values, columns.group),
            source="\n".join(sorted(choices)) if self._spec.source_is_choices else "",
        )

    def _read_text(self, values: Mapping[str, Any], name: str) -> str:
        if self._spec.has_gaps and is_missing(values.get(name)):
            return ""
        return text_of(values, name)

    def _read_choices(self, values: Mapping[str, Any], names: Names) -> Names:
        if len(names) > 1:
            choices = tuple(text_of(values, name) for name in names)
        else:
            listed = values.get(names[0])
            if not isinstance(listed, list):
                raise BadRowError(f"{names[0]} is no list of choices")
            choices = tuple(text_of({f"choice {n}": one}, f"choice {n}") for n, one in enumerate(listed, start=1))
        self._choices = self._choices or len(choices)
        if len(choices) != self._choices or len(choices) < 2:
            raise BadRowError(f"{len(choices)} choices where {max(2, self._choices)} are expected")
        return choices

    def _answer(self, value: Any, name: str, needs_label: bool) -> tuple[str | None, float | None]:
        """Returns (label, score); both None for what has none."""
        if isinstance(value, (list, dict)):
            raise BadRowError(f"{name} is a list or an object; a text has one label here")
        text = "" if is_missing(value) else str(value).strip()
        if text in self._spec.no_label or (not needs_label and not text):
            return None, None
        if not text:
            raise BadRowError(f"{name} is missing")
        if problem := unusable(text):
            raise BadRowError(f"{name} {problem}")
        return (None, self._score(text, name)) if self._spec.task.reads_scores else (self._label(text, name), None)

    def _score(self, text: str, name: str) -> float:
        low, high = self._range
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not low <= score <= high:
            raise BadRowError(f"{name}={brief(text)} is no number from {low:g} to {high:g} (task.score_range)")
        return score

    def _label(self, text: str, name: str) -> str:
        label = self._spec.aliases.get(text, text)
        known = self._spec.labels or tuple(map(str, range(self._choices)))
        if known and label not in known:
            raise BadRowError(f"{name}={brief(text)} is none of {', '.join(known)}")
        return label


def text_of(values: Mapping[str, Any], name: str) -> str:
    """Returns the stripped text in column `name`; numbers of JSON as they are written. Raises BadRowError."""
    value = values.get(name)
    if is_missing(value):
        raise BadRowError(f"{name} is missing")
    if isinstance(value, (list, dict)):
        raise BadRowError(f"{name} is no text")
    text = str(value).strip()
    if problem := unusable(text):
        raise BadRowError(f"{name} {problem}")
    return text
