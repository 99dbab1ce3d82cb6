"""The files of published sets that are no tables: SQuAD's JSON, RACE's folders of passages, COPA's XML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.tables import Table, TableRow, brief, check_file, json_value, open_table

SQUAD_COLUMNS = ("id", "question", "context", "answers", "group")


def squad_json(path: Path) -> Table:
    """Returns every question of SQuAD's JSON, 1.1 or 2.0: articles, their paragraphs, questions about each; else the
    records of any JSON. Raises DataError when the file is no JSON.
    """
    check_file(path)
    try:
        values = json_value(path)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(values, dict) or not isinstance(values.get("data"), list):
        return open_table(path, "json")
    return Table(str(path), SQUAD_COLUMNS, _questions(values["data"]))


def _questions(articles: list[Any]) -> Iterator[TableRow]:
    for number, article in enumerate(articles, start=1):
        try:
            paragraphs = [(paragraph["context"], list(paragraph["qas"])) for paragraph in article["paragraphs"]]
        except (KeyError, TypeError) as error:
            yield TableRow(f"article {number}", problem=f"damaged ({type(error).__name__}: {error})")
            continue
        for context, questions in paragraphs:
            for question in questions:
                yield _question(question, context, f"article {number}")


def _question(values: Any, context: Any, place: str) -> TableRow:
    try:
        identity, question, answers = str(values["id"]), values["question"], values.get("answers")
        if answers is not None:
            answers = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
    except (KeyError, TypeError, AttributeError) as error:
        return TableRow(place, problem=f"a question is damaged ({type(error).__name__}: {error})")
    if values.get("is_impossible"):
        answers = {"text": [], "answer_start": []}
    row = dict(zip(SQUAD_COLUMNS, (identity, question, context, answers, ""), strict=True))
    return TableRow(f"{place}, question {brief(identity)}", row)


RACE_COLUMNS = ("id", "article", "question", "options", "answer", "group")
COPA_COLUMNS = ("id", "premise", "choice1", "choice2", "question", "label")


def race_folder(folder: Path) -> Table:
    """Returns every question of a folder like RACE/train/middle: one .txt a passage, holding JSON. The group is its
    name.

    Raises DataError when there is no passage. A damaged passage, or one whose lists differ in length, is a bad row.
    """
    paths = sorted(folder.glob("*.txt"), key=lambda path: (len(path.name), path.name))  # 2.txt before 10.txt
    if not paths:
        raise DataError(f"{folder}: holds no passage; RACE has one .txt file per passage here")
    return Table(str(folder), RACE_COLUMNS, (row for path in paths for row in _passage(path, folder.name)))


def _passage(path: Path, group: str) -> Iterator[TableRow]:
    try:
        values: Any = json_value(path)
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
    """Returns the items of COPA's XML, named as in its JSON lines. Raises DataError when the file is no XML or has no
    item.
    """
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
