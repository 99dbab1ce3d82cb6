"""What is no file of a table, read as the rows of one: RACE's folders of passages, COPA's XML, and the `datasets`
library (`task.path=datasets:NAME[:SUBSET]`, or `datasets:` and a folder it has saved).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.remote import limit_hub_clients
from gpt1_ds.tasks.tables import Row, Table, read_json

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


def _passage(path: Path, group: str) -> Iterator[Row]:
    try:
        values: Any = read_json(path)
        article, questions, options = values["article"], values["questions"], values["options"]
        answers = values.get("answers", [None] * len(questions))  # None: not published
        lists = list(zip(questions, options, answers, strict=True))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        yield Row(path.name, problem=f"damaged ({type(error).__name__}: {error})")
        return
    for number, (question, choices, answer) in enumerate(lists, start=1):
        identity = f"{values.get('id', path.name)}-{number}"
        row = (identity, article, question, choices, answer, group)
        yield Row(f"{path.name} question {number}", dict(zip(RACE_COLUMNS, row, strict=True)))


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


def _item(number: int, item: ElementTree.Element) -> Row:
    identity, answer = item.get("id", str(number)), item.get("most-plausible-alternative")
    texts = [item.findtext(tag) for tag in ("p", "a1", "a2")]
    if None in texts or len(item.findall("*")) != len(texts):
        return Row(f"item {identity}", problem="needs one <p>, one <a1> and one <a2>")
    label = {None: None, "1": "0", "2": "1"}.get(answer, answer)  # counted from 0, as in the JSON lines
    row = (identity, *texts, item.get("asks-for"), label)
    return Row(f"item {identity}", dict(zip(COPA_COLUMNS, row, strict=True)))


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
    except ImportError:
        raise DataError("task.path=datasets:... needs the datasets library; pip install 'gpt1-ds[data]'") from None
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
    rows = (Row(f"record {number}", with_names(values, classes)) for number, values in enumerate(split, start=1))
    return Table(name, tuple(split.column_names), rows)


def classes_of(features: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """The names of the classes of each column that holds their numbers."""
    return {column: kind.names for column, kind in features.items() if hasattr(kind, "names")}


def with_names(values: Mapping[str, Any], classes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A row with the classes' names for their numbers; -1, for unknown, stays."""
    named = {
        column: names[values[column]]
        for column, names in classes.items()
        if isinstance(values[column], int) and values[column] >= 0
    }
    return {**values, **named}
