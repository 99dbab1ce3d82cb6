"""Task sections and their files, written into a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.common.errors import UserError
from gpt1_ds.config import TaskConfig, load
from gpt1_ds.tasks.reading import TaskData, read_task

TABLE = ["task.name=table", "task.kind=classification", "task.columns.text=text", "task.columns.label=label"]


def section(folder: Path, *arguments: str) -> TaskConfig:
    task = load([], [f"task.path={folder}", *arguments]).task
    assert task is not None
    return task


def read(folder: Path, *arguments: str, **files: str) -> TaskData:
    """Files are named by their stem and ending, like train_csv."""
    for name, text in files.items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(text)
    return read_task(section(folder, *arguments))


def refused(folder: Path, *arguments: str, **files: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        read(folder, *arguments, **files)
    assert all("\n" not in line for line in caught.value.problems)
    return list(caught.value.problems)


ROWS = "text,label\n" + "".join(f"text {n},{'yes' if n % 2 else 'no'}\n" for n in range(40))


DEV = "text,label\nx,yes\ny,no\n"
