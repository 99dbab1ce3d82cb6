"""Checks of the files that a command reads or writes, before it does any work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def input_problems(option: str, path: str, holds: str, output: str | None = None) -> Iterator[str]:
    """Yields why a command cannot read the lines of the file that `option` names: there is none, or it is where the
    answers go, to `output` or to standard output, which would be read in turn, without an end.
    """
    source, target = Path(path), Path(output or "/dev/stdout")
    if source.is_dir():
        yield f"{path}: is a folder; {option} names a file with {holds} a line"
    elif not source.exists():
        yield f"{path}: no such file; {option} names one with {holds} a line"
    elif source.is_file() and target.is_file() and target.samefile(source):
        yield f"{output or 'standard output'}: is what is read, too; choose another {'--output' if output else 'file'}"


def output_problems(option: str, path: str | None, in_place: bool = False) -> Iterator[str]:
    """Yields what is wrong with the path of a file that a command will write; nothing for None. `in_place` is of one
    that writes into what is there, a pipe for example; the others put a new file in its place.
    """
    if path is None:
        return
    place = Path(path)
    replaced = place.exists() and not in_place
    if place.is_dir() or not place.parent.is_dir() or (replaced and not place.is_file()):
        yield f"{path}: no file can be there; choose another {option}"
    elif not os.access(place if in_place and place.exists() else place.parent, os.W_OK):
        yield f"{path}: you may not write there; choose another {option}"
