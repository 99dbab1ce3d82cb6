"""Records of SuperGLUE that hold more than one example: MultiRC's passages with questions and their answer options, and
ReCoRD's passages with queries. A record becomes a row for each option, or for each query. Records of the `datasets`
library, which are such rows already, get the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpt1_ds.tasks.tables import Table, TableRow

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Unfolding:
    """`rows` makes of the values of a record those of its rows, which have these `columns`."""

    columns: tuple[str, ...]
    rows: Callable[[Values], Iterator[tuple[Any, ...]]]

    def __call__(self, table: Table) -> Table:
        """Returns the table with the rows in the place of the records. A record that lacks a part is a bad row."""
        return Table(table.path, self.columns, self._unfolded(table.rows))

    def _unfolded(self, records: Iterator[TableRow]) -> Iterator[TableRow]:
        for record in records:
            if record.problem:
                yield record
                continue
            try:
                rows = list(self.rows(record.values))
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                yield TableRow(record.place, problem=f"damaged ({type(error).__name__}: {error})")
                continue
            for number, row in enumerate(rows, start=1):
                place = record.place if len(rows) == 1 else f"{record.place}, row {number}"
                yield TableRow(place, dict(zip(self.columns, row, strict=True)))


def _options(values: Values) -> Iterator[tuple[Any, ...]]:
    """Yields a row for each answer option of each question; the question stands before the option."""
    if "passage" not in values:
        number = values["idx"]
        question = f"{number['paragraph']}-{number['question']}"
        answer = f"{values['question']} {values['answer']}"
        yield f"{question}-{number['answer']}", question, values["paragraph"], answer, values.get("label")
        return
    passage = values["passage"]
    for question in passage["questions"]:
        name = f"{values['idx']}-{question['idx']}"
        for option in question["answers"]:
            answer = f"{question['question']} {option['text']}"
            yield f"{name}-{option['idx']}", name, passage["text"], answer, option.get("label")


def _queries(values: Values) -> Iterator[tuple[Any, ...]]:
    """Yields a row for each query, with the answers and the characters of the passage that they begin at."""
    if "qas" not in values:
        text, number, spans, right = (values[key] for key in ("passage", "idx", "entity_spans", "answers"))
        pairs = zip(spans["text"], spans["start"], strict=True)
        places = [(entity, start) for entity, start in pairs if entity in right] if right else None
        yield str(number["query"]), values["query"], text, _answers(places)
        return
    for asked in values["qas"]:
        answers = asked.get("answers")
        places = None if answers is None else [(answer["text"], answer["start"]) for answer in answers]
        yield str(asked["idx"]), asked["query"], values["passage"]["text"], _answers(places)


def _answers(places: list[tuple[Any, Any]] | None) -> dict[str, list[Any]] | None:
    """Returns the answers in SQuAD's form; None where there are none."""
    if not places:
        return None
    return {"text": [text for text, _ in places], "answer_start": [start for _, start in places]}


MULTIRC = Unfolding(("id", "group", "paragraph", "answer", "label"), _options)
RECORD = Unfolding(("id", "question", "context", "answers"), _queries)
