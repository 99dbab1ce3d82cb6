"""Tables of the `datasets` library: `task.path=datasets:NAME[:SUBSET]`, or `datasets:` and a folder it has saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.remote import limit_hub_clients
from gpt1_ds.tasks.tables import Table, TableRow

HUB = "datasets:"  # before the name of a data set of the library


def hub_tables(
    path: str, names: Mapping[str, str], asked: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Iterator[Table]]]:
    """Yields (split, its tables) for every split of `names` (ours -> the library's) that the data set has.

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
    """Returns the names of the classes of each column that holds their numbers, alone or in lists."""
    types = {column: getattr(feature, "feature", feature) for column, feature in features.items()}
    return {column: type_.names for column, type_ in types.items() if hasattr(type_, "names")}


def with_names(values: Mapping[str, Any], classes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns a row with the names of classes in the place of their numbers; -1, for unknown, stays."""
    named: dict[str, Any] = {}
    for column, names in classes.items():
        value = values[column]
        if isinstance(value, int) and value >= 0:
            named[column] = names[value]
        elif isinstance(value, list):
            named[column] = [names[item] if isinstance(item, int) and item >= 0 else item for item in value]
    return {**values, **named}
