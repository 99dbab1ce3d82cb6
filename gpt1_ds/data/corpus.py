"""Where text comes from, and how it is cut into units of work: files, and the corpus inside every Python.

The language reference's topics and the docstrings of the standard library, read from the source files without running
them. A few megabytes, the same for one version of Python, no network needed.

An input is a .txt file (one document), a .jsonl file (one document a line), either of them compressed as .gz or .zst,
a .parquet file (one document a row), a folder of such files, one that `datasets` saved, a dataset on the hub
(`hf:NAME`), an address that fsspec knows, or the word `python-docs`. Units do not depend on the number of workers:
plain files are cut into ranges of about UNIT_BYTES at line ends, tables where row groups begin; small neighbours share
a unit, compressed files are read whole.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import did_you_mean
from gpt1_ds.common.log import say
from gpt1_ds.common.remote import without_secrets
from gpt1_ds.common.text import amount, is_utf8, shown
from gpt1_ds.config.sections import EMBEDDED
from gpt1_ds.data import hub_datasets, remote, tables
from gpt1_ds.data.segments import TEXT_KEY, Input, Segment, SourceFile, Unit

SKIPPED_FOLDERS = {"test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
SHORTEST = 60  # characters; shorter docstrings say little more than their name
MOST_CODE = 0.4  # share of lines that are interactive examples; docstrings above it are not prose


def documents() -> Iterator[str]:
    """One text per topic of the language reference, then one per module that has docstrings worth reading."""
    with contextlib.suppress(ImportError):  # some distributions leave it out
        from pydoc_data.topics import topics

        yield from (topics[name].strip() + "\n" for name in sorted(topics))
    for path in source_files():
        if text := "\n\n".join(_docstrings(path)):
            yield text + "\n"


def identity() -> str:
    """Names this corpus: the version of Python and the sizes of the files it is read from."""
    sizes = [(path.name, path.stat().st_size) for path in source_files()]
    return f"{platform.python_version()}-{hashlib.sha256(repr(sizes).encode()).hexdigest()[:16]}"


def source_files() -> list[Path]:
    """The standard library's modules in the order of their paths, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = [path for path in root.rglob("*.py") if not SKIPPED_FOLDERS & set(path.relative_to(root).parts[:-1])]
    return sorted(found, key=lambda path: path.relative_to(root).parts)


def _docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a file in the order of its lines, cleaned of their indentation."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in other people's strings
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # a file for another version of Python
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "").strip()
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        code = sum(line.startswith((">>>", "...")) for line in lines)
        if len(text) >= SHORTEST and code <= MOST_CODE * len(lines):
            yield text


UNIT_BYTES = 16 << 20
WINDOW_BYTES = 1 << 20  # how far a cut looks for a line end before it settles for a space
FORMATS = (".txt", ".jsonl")
COMPRESSIONS = (".gz", ".zst")
_USABLE = f"{' or '.join(FORMATS)}, plain or with {' or '.join(COMPRESSIONS)} after it, or {tables.PARQUET}"
_BLANK_LINE = re.compile(rb"\n[ \t]*\r?\n")


def find_inputs(words: Sequence[str | Path], text_key: str = TEXT_KEY) -> list[Input]:
    """The files of each --input, in the order given, a folder's by path; `text_key` is where rows and lines have text.

    Raises DataError for what is missing, of an unknown kind or not readable, or a folder without usable files, all of
    them at once.
    """
    found: list[Input] = []
    problems: list[str] = []
    for word in words:
        try:
            found.append(_find(str(word), text_key))
        except DataError as error:
            problems += error.problems
    DataError.raise_all(problems)
    if not found:
        raise DataError("--input names nothing; name files, folders or python-docs")
    return found


def _find(word: str, text_key: str) -> Input:
    _check_name(word)
    if word == EMBEDDED:
        return Input(word, (SourceFile(word, identity(), EMBEDDED, "", 0, 0),))
    if word.startswith(hub_datasets.PREFIX):
        return hub_datasets.find(word, text_key)
    if "://" in word:
        return _find_remote(word, text_key)
    path = Path(word)
    if path.is_dir() and tables.is_saved(path):
        return tables.find(path, text_key)
    if path.is_dir():
        seen, others = _files_below(path)
        for name in seen:
            _check_name(name.as_posix())
        if not seen:
            raise DataError(f"{word}: no usable file in this folder; it needs {_USABLE}")
        _say_others(word, list(map(str, others)))
        return Input(path.resolve().name, tuple(_source(path / name, name.as_posix(), text_key) for name in seen))
    if not path.exists():
        meant = did_you_mean(path) or f"--input takes files, folders, hf:NAME or {EMBEDDED}"
        raise DataError(f"{word}: no such file or folder; {meant}")
    if not _kind(path.name):
        raise DataError(f"{word}: of no known kind; rename it to end in {_USABLE}")
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
    """Raise DataError for one that is no UTF-8."""
    if not is_utf8(name):
        raise DataError(f"{name!a}: the name is no UTF-8 and cannot be written down; rename it")


def _find_remote(word: str, text_key: str) -> Input:
    address_shown, found = without_secrets(word), remote.list_files(word)
    if found is None:
        raise DataError(f"{address_shown}: no such file or folder; look at the address")
    seen = [one for one in found if not any(part.startswith(".") for part in one[1].split("/"))]
    files = tuple(
        SourceFile(address, name, *kind, size, changed, text_key)
        for address, name, size, changed in seen
        if (kind := _kind(name))
    )
    if not files:
        raise DataError(f"{address_shown}: no usable file there; it needs {_USABLE}")
    _say_others(address_shown, [name for _, name, _, _ in seen if not _kind(name)])
    return Input(address_shown.rstrip("/").rpartition("/")[2], files)


def _say_others(folder: str, names: Sequence[str]) -> None:
    """Says which files of a folder are not read, where there are any."""
    if names:
        say(f"{folder}: leaves out {amount(len(names), 'file')} of other kinds, such as {shown(names[0])}")


def _kind(name: str) -> tuple[str, str] | None:
    """(format, compression) by the name's ending, None for other files."""
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


def plan_units(
    inputs: Sequence[Input], unit_bytes: int = UNIT_BYTES, unwrap: bool = False, whole_documents: bool = False
) -> list[Unit]:
    """The units of `inputs` in the order of their text, which cut documents unless they are to be `whole_documents`.
    Only looks into files that are larger than one unit.
    """
    units: list[Unit] = []
    for number, one in enumerate(inputs):
        segments: list[Segment] = []
        size = 0
        for file in one.files:
            parts = [Segment(file, 0, file.size)] if whole_documents and file.format == ".txt" else None
            for segment in parts or _segments(file, unit_bytes, unwrap):
                alone = _is_whole(file) or (segments and _is_whole(segments[-1].file))
                if segments and (size >= unit_bytes or alone):
                    units.append(Unit(len(units), number, tuple(segments)))
                    segments, size = [], 0
                segments.append(segment)
                size += segment.stop - segment.start
        units.append(Unit(len(units), number, tuple(segments)))
    return units


def _is_whole(file: SourceFile) -> bool:
    """Whether one worker reads it from its beginning to its end, and nothing else."""
    return bool(file.compression) or file.format == hub_datasets.FORMAT


def _segments(file: SourceFile, unit_bytes: int, unwrap: bool) -> Iterator[Segment]:
    start, previous = 0, ""
    if file.size > unit_bytes and file.format in (tables.PARQUET, tables.ARROW):
        for at in tables.starts(file):
            if at - start >= unit_bytes:
                yield Segment(file, start, at)
                start = at
    elif file.size > unit_bytes and not _is_whole(file):
        with remote.opened(file) as stream:
            while start + unit_bytes < file.size:
                stop, last = _cut(stream, start + unit_bytes, file, unwrap)
                if stop >= file.size:
                    break
                yield Segment(file, start, stop, previous)
                start, previous = stop, last
    yield Segment(file, start, file.size, previous)


def _cut(stream: BinaryIO, target: int, file: SourceFile, unwrap: bool) -> tuple[int, str]:
    """(offset, character before it) of the first good place to cut at or after byte `target`.

    After a blank line when lines are to be joined, else after a line end; never inside a document of a .jsonl file. In
    a .txt white space must not follow it, if there is such a place. A .txt without line ends is cut before a space, or
    at least between characters and not between CR and LF.
    """
    stream.seek(target)
    window = stream.read(WINDOW_BYTES)
    if file.format == ".txt":
        return _cut_text(window, target, file, unwrap)
    offset = target
    while window:
        if (at := window.find(b"\n")) >= 0:
            return offset + at + 1, "\n"
        offset += len(window)
        window = stream.read(WINDOW_BYTES)
    return file.size, ""


def _cut_text(window: bytes, target: int, file: SourceFile, unwrap: bool) -> tuple[int, str]:
    """The same in the bytes of a .txt from `target` on."""
    last = len(window) < WINDOW_BYTES  # of the file
    if unwrap:
        ends = [blank.end() for blank in _BLANK_LINE.finditer(window)]
        if found := next((at for at in ends if not _is_white(window[at : at + 4], 0)), ends[0] if ends else 0):
            return target + found, "\n"
        if last:  # the last paragraph
            return file.size, ""
    ends = [found.end() for found in re.finditer(b"\n", window)]
    if good := next((at for at in ends if not _is_white(window[at : at + 4], 0)), 0):
        return target + good, "\n"
    spaces = [found.start() for found in re.finditer(b" ", window) if found.start()]
    if good := next((at for at in spaces if not _is_white(window[max(0, at - 4) : at], -1)), 0):
        return target + good, "x"
    if last and (ends or spaces):  # what is left ends in white space
        return file.size, ""
    if ends:
        return target + ends[0], "\n"
    inside = (at for at in range(1, len(window)) if window[at] & 0xC0 != 0x80 and window[at - 1] != 13)
    return target + (spaces[0] if spaces else next(inside, len(window))), "x"


def _is_white(data: bytes, number: int) -> bool:
    """Whether the first (0) or last (-1) character of `data`, which may hold parts of others, is white space, or none
    is there.
    """
    letter = data.decode(errors="ignore")[number:][:1]
    return not letter or letter.isspace()
