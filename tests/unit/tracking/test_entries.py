"""Entries of eval.json."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.tracking.record import CONTROL, Entry, merge, of_models, of_own_data, of_run, read_entries


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


RESULT = {"task": "a", "split": "dev", "step": 1, "metrics": {"accuracy": 0.5, "f1": None}}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not a list of results; remove it and evaluate again"),
        ("{}}", "not a list of results; remove it and evaluate again"),
        ("[1]", "result 1 is 1, no record; remove it"),
        ('[{"task": "a"}]', "result 1 has no split; remove this record"),
        (json.dumps([RESULT, {**RESULT, "step": True}]), "result 2: step is True, no count; "),
        (json.dumps([{**RESULT, "metrics": [1]}]), r"result 1: metrics is \[1\], no numbers; "),
        (json.dumps([{**RESULT, "metrics": {"a": "high"}}]), "result 1: metrics is {'a': 'high'}, no numbers; "),
        (json.dumps([{**RESULT, "metrics": {"a": 10**400}}]), "result 1: metrics is {'a': 1000"),
    ],
)
def test_another_file_is_refused(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "eval.json").write_text(json.dumps([RESULT]))
    assert read_entries(tmp_path / "eval.json") == [RESULT]
    (tmp_path / "eval.json").write_text(content)
    with pytest.raises(DataError, match=rf"eval\.json: {says}"):
        read_entries(tmp_path / "eval.json")


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "eval.json")
    with pytest.raises(DataError, match=r"eval\.json: not a plain file"):
        read_entries(tmp_path / "eval.json")


def scored(task: str, step: int, value: float, **more: str) -> Entry:
    return {"task": task, "split": "dev", "step": step, "metrics": {"accuracy": value}, **more}


def test_results_of_other_data_stand_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "eval.json"
    own, other = scored("cola", 9, 0.5, data="a"), scored("cola", 9, 0.1, data="b")
    merge(path, own)
    merge(path, other)
    merge(path, scored("cola", 9, 0.6, data="a"))
    assert read_entries(path) == [scored("cola", 9, 0.6, data="a"), other]


def test_a_run_is_known_by_what_it_wrote_itself(tmp_path: Path) -> None:
    """Whatever was evaluated before it ended and after it."""
    path = tmp_path / "eval.json"
    merge(path, scored("cola", 3, 0.1, data="b"))
    merge(path, scored("cola", 9, 0.2, data="b"))
    own = [scored("cola", 9, 0.5, data="a"), {**scored("cola", 9, 0.7, data="c"), "split": "test"}]
    merge(path, *own, first=True)
    for later in (scored("sts", 9, 0.3, data="d"), scored("cola", 3, 0.4, data="a"), scored("cola", 6, 0.4)):
        merge(path, later)
    assert of_run(read_entries(path)) == own


def test_controls_are_of_their_tasks_data() -> None:
    control = f"{CONTROL}majority/cola"
    entries = [scored(control, 0, 0.1, data="b"), scored("cola", 9, 0.5, data="a"), scored(control, 0, 0.2, data="a")]
    assert of_own_data(entries) == entries[1:]


def test_results_that_do_not_say_their_data_are_the_runs_own() -> None:
    old = [scored("cola", 9, 0.5), scored("cola", 6, 0.4), scored("zero-shot/cola", 6, 0.3)]
    assert of_own_data(old) == old
    assert of_run(old) == old[:1]
    assert of_run([*old, scored("cola", 9, 0.1, data="b")]) == old[:1]
    assert of_run([]) == []
