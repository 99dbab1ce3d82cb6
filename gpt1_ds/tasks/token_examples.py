"""Rows of a table as examples of spans, tags and texts to write, and what is wrong with a row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpt1_ds.common.text import is_missing
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.kinds import Generation, Span, Tagging
from gpt1_ds.tasks.rows import BadRowError, RowReader, TaskColumns, text_of
from gpt1_ds.tasks.specs import Spec
from gpt1_ds.tasks.tables import brief, unusable

STARTS = ("starts", "answer_starts", "answer_start")  # columns of where answers begin
IMPOSSIBLE = "is_impossible"  # a column that says whether there is no answer


def row_reader(spec: Spec, score_range: Sequence[float]) -> RowReader:
    """Returns what makes examples of the rows of this task."""
    known = {Span: SpanReader, Tagging: TagReader, Generation: TargetReader}
    return known.get(spec.task, RowReader)(spec, score_range)


class SpanReader(RowReader):
    """Answers are {text: [...], answer_start: [...]}, as in SQuAD and the `datasets` library; or texts, and in a column
    beside them the characters that they begin at, without which the first place of a text counts. In a file of
    delimited cells both are JSON, or one answer as it is. A question without an answer has an empty list, or says so.
    """

    def example(self, values: Mapping[str, Any], columns: TaskColumns, number: int, needs_label: bool) -> Example:
        """Returns one row as an example. Raises BadRowError."""
        context = values.get(columns.text2)
        if is_missing(context) or not isinstance(context, str):
            raise BadRowError(f"{columns.text2} is missing")
        if problem := unusable(context):
            raise BadRowError(f"{columns.text2} {problem}")
        return Example(
            id=text_of(values, columns.id) if columns.id else str(number),
            texts=(text_of(values, columns.text[0]), context),
            answers=self._answers(values, columns.label, context, needs_label),
            group="" if is_missing(values.get(columns.group)) else text_of(values, columns.group),
            source=context,
        )

    def _answers(
        self, values: Mapping[str, Any], name: str, context: str, needs_label: bool
    ) -> tuple[tuple[str, int], ...] | None:
        """Returns (text, where it begins) of each, nothing where there is no answer; None where nothing is known."""
        if str(values.get(IMPOSSIBLE)).strip().lower() in ("true", "1"):
            return ()
        value = _listed(values.get(name))
        if is_missing(value):
            if needs_label:
                raise BadRowError(f"{name} is missing; [], or {IMPOSSIBLE}=true, says that there is no answer")
            return None
        starts: Any = next((values[column] for column in STARTS if not is_missing(values.get(column))), None)
        if isinstance(value, dict):
            starts, value = value.get("answer_start"), value.get("text")
        texts = value if isinstance(value, list) else [value]
        places = [None] * len(texts) if starts is None else _listed(starts)
        places = places if isinstance(places, list) else [places]
        if len(texts) != len(places):
            raise BadRowError(f"{len(texts)} answers, but {len(places)} places where they begin")
        return tuple(self._one(text, place, context) for text, place in zip(texts, places, strict=True))

    def _one(self, text: Any, place: Any, context: str) -> tuple[str, int]:
        if not isinstance(text, str) or not text.strip():
            raise BadRowError(f"answer {brief(str(text))} is no text")
        try:
            start = context.find(text) if place is None else int(place)
        except (TypeError, ValueError, OverflowError):
            raise BadRowError(f"answer_start={brief(str(place))} is no number") from None
        if start < 0 or context[start : start + len(text)] != text:
            where = f"at character {start} of" if place is not None else "in"
            raise BadRowError(f"answer {brief(text)} is not {where} the context")
        shown = text.lstrip()
        return shown.rstrip(), start + len(text) - len(shown)


class TagReader(RowReader):
    """Words and tags are lists of equal length, or in delimited cells texts with blanks between."""

    def example(self, values: Mapping[str, Any], columns: TaskColumns, number: int, needs_label: bool) -> Example:
        """Returns one row as an example. Raises BadRowError."""
        words = _words(values, columns.text[0])
        tags: list[str] = []
        if needs_label or not is_missing(values.get(columns.label)):
            tags = [self._spec.aliases.get(tag, tag) for tag in _words(values, columns.label)]
            if len(tags) != len(words):
                raise BadRowError(f"{len(words)} words, but {len(tags)} tags")
            if unknown := sorted({*tags}.difference(self._spec.labels or tags)):
                raise BadRowError(f"tag {brief(unknown[0])} is none of {', '.join(self._spec.labels)}")
        return Example(
            id=text_of(values, columns.id) if columns.id else str(number),
            texts=tuple(words),
            tags=tuple(tags),
            group="" if is_missing(values.get(columns.group)) else text_of(values, columns.group),
            source=" ".join(words),
        )


class TargetReader(RowReader):
    """A target is a text, or a list of right ones, of which the first is learned; SQuAD's answers are such a list."""

    def example(self, values: Mapping[str, Any], columns: TaskColumns, number: int, needs_label: bool) -> Example:
        """Returns one row as an example. Raises BadRowError."""
        named = [" ".join(columns.text), *filter(None, [columns.text2])]
        return Example(
            id=text_of(values, columns.id) if columns.id else str(number),
            texts=tuple(text_of(values, name) for name in named),
            targets=self._targets(values, columns.label, needs_label),
            group="" if is_missing(values.get(columns.group)) else text_of(values, columns.group),
        )

    def _targets(self, values: Mapping[str, Any], name: str, needed: bool) -> tuple[str, ...]:
        value = values.get(name)
        value = value.get("text") if isinstance(value, dict) else value
        listed = value if isinstance(value, list) else [] if is_missing(value) else [value]
        if needed and not listed:
            raise BadRowError(f"{name} is missing")
        return tuple(text_of({name: target}, name) for target in listed)


def _words(values: Mapping[str, Any], name: str) -> list[str]:
    value = values.get(name)
    if is_missing(value):
        raise BadRowError(f"{name} is missing")
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not words:
        raise BadRowError(f"{name} is no list of words")
    if any(map(is_missing, words)):
        raise BadRowError(f"{name} has a word that is empty or missing")
    words = [text_of({name: word}, name) for word in words]
    if any(mark in word for word in words for mark in "\t\n\r"):
        raise BadRowError(f"{name} has a word that holds a tab or a line end")
    return words


def _listed(value: Any) -> Any:
    """Returns a cell's JSON list or object; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
