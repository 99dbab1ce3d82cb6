"""The `datasets` library as a source: `task.path=datasets:NAME[:SUBSET]`, or `datasets:` and a folder it has saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.tables import Row, Table

PREFIX = "datasets:"


def tables(
    path: str, names: Mapping[str, str], asked: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Iterator[Table]]]:
    """(split, its table) for every split of `names` (ours -> the library's) that the data set has.

    Raises DataError when the library is not installed or cannot load the data set, and when `train` or a split that
    was asked for by name is not there.
    """
    loaded = _load(path.removeprefix(PREFIX))
    for split, name in names.items():
        parts = name.split("+")
        if all(part in loaded for part in parts):
            yield split, (_table(f"{path} {part}", loaded[part]) for part in parts)
        elif split == "train" or asked.get(split):
            raise DataError(f"{path}: has no split {name}, only {', '.join(loaded)}; name others with task.{split}")


def _load(name: str) -> Mapping[str, Any]:
    try:
        import datasets
    except ImportError:
        raise DataError("task.path=datasets:... needs the datasets library; pip install 'gpt1-ds[datasets]'") from None
    try:
        if Path(name).is_dir():
            loaded = datasets.load_from_disk(name)
        else:
            loaded = datasets.load_dataset(*name.split(":"))
    except Exception as error:  # whatever the library, the network or a data set's own code raises
        first = str(error).partition("\n")[0]
        raise DataError(
            f"{PREFIX}{name}: the datasets library cannot load it ({type(error).__name__}: {first:.200})"
        ) from None
    if not isinstance(loaded, Mapping):
        raise DataError(f"{PREFIX}{name}: holds one split without a name; save a DatasetDict with train and validation")
    return loaded


def _table(name: str, split: Any) -> Table:
    """Class numbers become the names that the data set gives them; -1, for unknown, stays."""
    classes = {column: kind.names for column, kind in split.features.items() if hasattr(kind, "names")}

    def rows() -> Iterator[Row]:
        for number, values in enumerate(split, start=1):
            named = {
                column: kind[values[column]]
                for column, kind in classes.items()
                if isinstance(values[column], int) and values[column] >= 0
            }
            yield Row(f"record {number}", {**values, **named})

    return Table(name, tuple(split.column_names), rows())
