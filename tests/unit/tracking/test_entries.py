"""Entries of eval.json."""

from __future__ import annotations

from gpt1_ds.tracking.entries import CONTROL, Entry, of_models


def test_controls_are_no_results_of_a_model() -> None:
    entries: list[Entry] = [
        {"task": task, "split": "dev", "step": step, "metrics": {"accuracy": 0.5}}
        for task, step in (("cola", 9), (f"{CONTROL}majority/cola", 0), ("zero-shot/cola", 9))
    ]
    assert of_models(entries) == [entries[0], entries[2]]
