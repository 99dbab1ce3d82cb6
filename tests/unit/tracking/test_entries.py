"""Entries of eval.json."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.tracking.entries import CONTROL, Entry, merge, of_models, read_entries


def test_controls_are_no_results_of_a_model() -> None:
    entries: list[Entry] = [
        {"task": task, "split": "dev", "step": step, "metrics": {"accuracy": 0.5}}
        for task, step in (("cola", 9), (f"{CONTROL}majority/cola", 0), ("zero-shot/cola", 9))
    ]
    assert of_models(entries) == [entries[0], entries[2]]


def merge_many(path: Path, split: str) -> None:
    for step in range(20):
        merge(path, {"task": "cola", "split": split, "step": step, "metrics": {"accuracy": 0.5}})


def test_two_processes_lose_no_result_of_each_other(tmp_path: Path) -> None:
    path, context = tmp_path / "eval.json", multiprocessing.get_context("spawn")
    both = [context.Process(target=merge_many, args=(path, split)) for split in ("dev", "test")]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    assert len(read_entries(path)) == 40
    assert [file.name for file in tmp_path.iterdir()] == ["eval.json"]


@pytest.mark.parametrize("text", ["", "{}}", "[1]", '[{"task": "a"}]'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "eval.json").write_text(text)
    with pytest.raises(DataError, match=r"eval\.json: not a list of results; remove it and evaluate again"):
        read_entries(tmp_path / "eval.json")
