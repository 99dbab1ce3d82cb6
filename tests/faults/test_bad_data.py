"""A dataset that is not what was built is noticed before a step consumes it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import DataError
from tests.helpers import runs


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def put_in_a_wrong_token(path: Path) -> None:
    tokens = np.fromfile(path, np.uint16)
    tokens[len(tokens) // 2] = 60_000
    tokens.tofile(path)


def take_another_dtype(path: Path) -> None:
    np.fromfile(path, np.uint16).astype(np.int32).tofile(path)


@pytest.mark.parametrize("kind", [".bin", ".idx"])
@pytest.mark.parametrize("damage", [flip_a_bit, truncate, put_in_a_wrong_token, take_another_dtype])
def test_no_step_is_trained_on_it(damage: Callable[[Path], None], kind: str, tiny_data: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data)
    path = next(path for path in sorted(data.iterdir()) if path.suffix == kind and "train" in path.name)
    damage(path)
    words = [f"data.path={data}", f"run.dir={tmp_path}", "train.steps=3"]
    with pytest.raises(DataError, match=path.stem):
        runs.pretrain(words, 2)
    assert runs.last_step(runs.folder(words)) == 0
