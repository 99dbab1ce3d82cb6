"""Where text comes from: an input and its files.

An input is a .txt file (one document), a .jsonl file (one document a line), either of them compressed as .gz or .zst,
a .parquet file (one document a row), a folder of such files, one that `datasets` saved, a dataset on the hub
(`hf:NAME`), an address that fsspec knows, or `python-docs`, the corpus inside every Python.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import did_you_mean
from gpt1_ds.common.log import say
from gpt1_ds.common.remote import without_secrets
from gpt1_ds.common.text import amount, is_utf8, shown
from gpt1_ds.config.sections import EMBEDDED
from gpt1_ds.data import hub_datasets, python_docs, remote, tables
from gpt1_ds.data.segments import TEXT_KEY, Input, SourceFile

FORMATS = (".txt", ".jsonl")
COMPRESSIONS = (".gz", ".zst")
_USABLE = f"{' or '.join(FORMATS)}, plain or with {' or '.join(COMPRESSIONS)} after it, or {tables.PARQUET}"


def find_inputs(names: Sequence[str | Path], text_key: str = TEXT_KEY) -> list[Input]:
    """Returns the inputs with these names, in the order given, each with its files, those of a folder in the order of
    their paths. `text_key` names the field of rows and lines that has the text.

    Raises DataError for what is missing, of an unknown kind or not readable, or a folder without usable files, all of
    them at once.
    """
    inputs: list[Input] = []
    problems: list[str] = []
    for name in names:
        try:
            inputs.append(_find(str(name), text_key))
            _say_empty(inputs[-1])
        except DataError as error:
            problems += error.problems
    DataError.raise_all(problems)
    if not inputs:
        raise DataError("--input names nothing; name files, folders or python-docs")
    return inputs


def _find(name: str, text_key: str) -> Input:
    _check_name(name)
    if name == EMBEDDED:
        return Input(name, (SourceFile(name, python_docs.identity(), EMBEDDED, "", 0, 0),))
    if name.startswith(hub_datasets.PREFIX):
        return hub_datasets.find(name, text_key)
    if "://" in name:
        return _find_remote(name, text_key)
    path = Path(name)
    if path.is_dir() and tables.is_saved(path):
        return tables.find(path, text_key)
    if path.is_dir():
        usable, others = _files_below(path)
        for inside in usable:
            _check_name(inside.as_posix())
        if not usable:
            raise DataError(f"{name}: no usable file in this folder; it needs {_USABLE}")
        _say_others(name, list(map(str, others)))
        files = (_source(path / inside, inside.as_posix(), text_key) for inside in usable)
        return Input(path.resolve().name, tuple(files))
    if not path.exists():
        hint = did_you_mean(path) or f"--input takes files, folders, hf:NAME or {EMBEDDED}"
        raise DataError(f"{name}: no such file or folder; {hint}")
    if not _kind(path.name):
        raise DataError(f"{name}: of no known kind; rename it to end in {_USABLE}")
    return Input(path.name, (_source(path, path.name, text_key),))


def _files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Returns the paths within `folder` of the files of a known kind, and of the others, hidden ones apart. A folder
    that is linked from elsewhere is read, too, and none is read twice.

    Raises DataError for a link of a known kind's name to nothing, and for a folder that may not be read.
    """
    root = folder.resolve()
    usable: list[Path] = []
    others: list[Path] = []
    read = {root}

    def refuse(error: OSError) -> None:
        if not isinstance(error, PermissionError):
            raise error
        raise DataError(f"{error.filename}: permission denied; make this folder readable, or move it away") from None

    def is_new(path: Path) -> bool:
        target = path.resolve()
        if target in read or (path.is_symlink() and target.is_relative_to(root)):  # then it is read where it lies
            return False
        read.add(target)
        return True

    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = [name for name in sorted(folders) if not name.startswith(".") and is_new(Path(place, name))]
        for path in (Path(place, name) for name in names if not name.startswith(".")):
            if path.is_file():
                (usable if _kind(path.name) else others).append(path.relative_to(folder))
            elif _kind(path.name) and path.is_symlink() and not path.exists():
                raise DataError(f"{path}: a link to a file that is not there; repair it, or remove it")
    return sorted(usable), sorted(others)


def _check_name(name: str) -> None:
    """Raises DataError for a name that is no UTF-8."""
    if not is_utf8(name):
        raise DataError(f"{name!a}: the name is no UTF-8 and cannot be written down; rename it")


def _find_remote(address: str, text_key: str) -> Input:
    public, listing = without_secrets(address), remote.list_files(address)
    if listing is None:
        raise DataError(f"{public}: no such file or folder; look at the address")
    files: list[SourceFile] = []
    others: list[str] = []
    for place, name, size, changed in listing:
        if any(part.startswith(".") for part in name.split("/")):
            continue
        if kind := _kind(name):
            files.append(SourceFile(place, name, *kind, size, changed, text_key))
        else:
            others.append(name)
    if not files:
        raise DataError(f"{public}: no usable file there; it needs {_USABLE}")
    _say_others(public, others)
    return Input(public.rstrip("/").rpartition("/")[2], tuple(files))


def _say_others(folder: str, names: Sequence[str]) -> None:
    """Says which files of a folder are not read, where there are any."""
    if names:
        say(f"{folder}: leaves out {amount(len(names), 'file')} of other kinds, such as {shown(names[0])}")


def _say_empty(source: Input) -> None:
    """Says which files have no byte, where there are any: they are no documents."""
    empty = [file.name for file in source.files if file.format in FORMATS and file.size == 0]
    if empty:
        say(f"{source.name}: leaves out {amount(len(empty), 'empty file')}, such as {shown(empty[0])}")


def _kind(name: str) -> tuple[str, str] | None:
    """Returns (format, compression) by the name's ending, None for other files."""
    name = name.lower()
    if name.endswith(tables.PARQUET):
        return tables.PARQUET, ""
    compression = next((ending for ending in COMPRESSIONS if name.endswith(ending)), "")
    stem = name.removesuffix(compression)
    return next(((ending, compression) for ending in FORMATS if stem.endswith(ending)), None)


def _source(path: Path, name: str, text_key: str) -> SourceFile:
    status = path.stat()
    kind = _kind(path.name)
    assert kind is not None, f"{path} was found without a known ending"
    return SourceFile(str(path.resolve()), name, *kind, status.st_size, status.st_mtime_ns, text_key)
