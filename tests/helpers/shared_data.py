"""Where the real data lies that tests use when it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("GPT1_DS_DATA") or Path(__file__).parents[2].parent / "shared" / "data")


def shared_data(name: str) -> Path:
    """The file or folder `name` of the shared data; skips the test where it is missing."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{path} is not here; set GPT1_DS_DATA to the folder that holds {name}")
    return path
