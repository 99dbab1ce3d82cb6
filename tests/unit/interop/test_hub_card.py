"""What of a run's configuration a page on the hub shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.interop import hub


@pytest.mark.parametrize(
    ("value", "private"),
    [
        ("/home/me/clients/acme/train.csv", True),
        (Path("data"), True),
        (["/home/me/clients/acme/train.csv"], True),
        (["train.csv", "sub/train.csv"], True),
        (["train.csv"], False),
        ([], False),
        (3e-4, False),
        (None, True),
    ],
)
def test_paths_are_private(value: Any, private: bool) -> None:
    assert hub._is_private("train", value) == private
