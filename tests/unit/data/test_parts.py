from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.data import parts
from gpt1_ds.data.inputs import find_inputs
from gpt1_ds.data.parts import PartSummary, PartTask, finished_part, part_folder
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.units import plan_units

UINT16 = np.dtype(np.uint16)


@pytest.mark.parametrize("flush", [1, 1 << 20])
def test_a_document_over_three_parts(
    tmp_path: Path, tokenizer_folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, flush: int
) -> None:
    monkeypatch.setattr(parts, "FLUSH_TOKENS", flush)
    (tmp_path / "a.txt").write_text("kalo\nmiren\ntué\n")
    units = plan_units(find_inputs([tmp_path / "a.txt"]), unit_bytes=4)
    task = PartTask(tokenizer_folder, tmp_path / "parts", unwrapped=False)
    summaries = [task(unit) for unit in units]
    lengths = [len(tokenizer.encode(line)) for line in ("kalo\n", "miren\n", "tué\n")]
    assert summaries == [
        PartSummary(0, 0, 0, lengths[0], 5),
        PartSummary(0, 0, 0, lengths[1], 6),
        PartSummary(1, lengths[2] + 1, 5, 0, 0),
    ]
    ids = np.concatenate([np.fromfile(part_folder(task.parts, n) / "tokens.bin", UINT16) for n in range(3)])
    assert ids.tolist() == [*tokenizer.encode("kalo\nmiren\ntué\n").tolist(), tokenizer.eod_id]
    assert np.fromfile(part_folder(task.parts, 2) / "documents.bin", np.int64).tolist() == [lengths[2] + 1, 5]


def test_a_part_counts_only_when_it_is_whole(tmp_path: Path, tokenizer_folder: Path) -> None:
    (tmp_path / "a.txt").write_text("kalo miren")
    (unit,) = plan_units(find_inputs([tmp_path / "a.txt"]))
    task = PartTask(tokenizer_folder, tmp_path, unwrapped=False)
    assert finished_part(tmp_path, 0, UINT16) is None
    summary = task(unit)
    assert finished_part(tmp_path, 0, UINT16) == summary
    assert task(unit) == summary  # somebody else was faster
    for name in ("tokens.bin", "documents.bin", "part.json"):
        task(replace(unit, number=1))
        (part_folder(tmp_path, 1) / name).write_bytes(b"{}")
        assert finished_part(tmp_path, 1, UINT16) is None
        for file in part_folder(tmp_path, 1).iterdir():
            file.unlink()
        part_folder(tmp_path, 1).rmdir()
