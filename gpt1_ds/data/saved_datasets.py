"""Folders that `datasets` wrote with `save_to_disk`: their Arrow files, in the order that the folder says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import parse_json
from gpt1_ds.data.segments import Input, SourceFile
from gpt1_ds.data.tables import ARROW

STATE, SPLITS = "state.json", "dataset_dict.json"
DEFAULT_SPLIT = "train"


def is_saved(folder: Path) -> bool:
    return (folder / STATE).is_file() or (folder / SPLITS).is_file()


def find(folder: Path, text_key: str) -> Input:
    """The files of a saved dataset, of several splits those of `train`. Raises DataError where there are none."""
    if not (folder / STATE).is_file():
        splits = _said(folder / SPLITS, "splits")
        if DEFAULT_SPLIT not in splits:
            raise DataError(
                f"{folder}: has no split {DEFAULT_SPLIT}; name one: {', '.join(f'{folder}/{x}' for x in splits)}"
            )
        folder = folder / DEFAULT_SPLIT
    try:
        names = [entry["filename"] for entry in _said(folder / STATE, "_data_files")]
        if not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("it names a file outside its folder")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder / STATE}: damaged ({error!s:.100}); save the dataset again") from None
    return Input(folder.resolve().name, tuple(arrow_file(folder / name, text_key) for name in names))


def arrow_file(path: Path, text_key: str) -> SourceFile:
    if not path.is_file():
        raise DataError(f"{path}: this file of the dataset is missing; save it again")
    status = path.stat()
    return SourceFile(str(path.resolve()), path.name, ARROW, "", status.st_size, status.st_mtime_ns, text_key)


def _said(path: Path, key: str) -> Any:
    try:
        return parse_json(path.read_bytes())[key]
    except FileNotFoundError:
        raise DataError(f"{path}: is missing; save the dataset again") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error!s:.100}); save the dataset again") from None
