"""Where the real data lies that tests use when it is there."""

from __future__ import annotations

import json
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


def small_tasks(folder: Path) -> Path:
    """`folder`, filled as `data fetch` fills it for the claims; of SNLI, MNLI and QNLI only slices."""
    slices = shared_data("nli_slices")
    for task in ("snli", "mnli", "qnli"):
        (folder / task).mkdir(parents=True)
        for split in ("train", "dev"):
            rows = json.loads((slices / f"{task}_slice_{split}.json").read_text()).values()
            (folder / task / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = {"sst2_sentences": "sst2/sentence_level", "blimp": "blimp", "cola": "cola"}
    for name, place in places.items():
        (folder / name).symlink_to(shared_data(place))
    return folder
