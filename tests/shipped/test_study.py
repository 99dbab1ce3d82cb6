"""`gpt1-ds finetune study` as a person uses it: from a small checkpoint to a table, and what it says to mistakes."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.foreign import SMALL, make_checkpoint
from tests.helpers.tasks import DEV, ROWS
from tests.helpers.theirs import BERT
from tools import runs
from tools.cluster import Result

Gpt1 = Callable[..., Result]


@pytest.fixture(scope="module")
def small(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path_factory.mktemp('runs')}", "train.steps=2"]
    assert runs.pretrain(arguments, 1) == 0
    return runs.folder(arguments).path


@pytest.fixture
def folder(small: Path, tmp_path: Path) -> Path:
    """A checkpoint of two steps, a task of forty rows, and a study of both."""
    shutil.copytree(small, tmp_path / "runs" / "small")
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "train.csv").write_text(ROWS)
    (tmp_path / "task" / "dev.csv").write_text(DEV)
    (tmp_path / "table.yaml").write_text(
        """
        checkpoint: runs/small
        seeds: [1, 2]
        tasks:
          - {preset: finetune/table, name: mine, task.path: task, train.global_batch: 8}
        variants: [full, no pre-training]
        overrides: {train.epochs: 1}
        layer_transfer: {tasks: [mine], layers: [-1, 1, 2], seeds: [1]}
        jobs: 2
        """
    )
    return tmp_path


@pytest.mark.slow
def test_from_a_checkpoint_to_a_table(
    folder: Path, gpt1: Gpt1, program: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """By a process of its own, as a person starts it; the other tests ask the program in this one."""
    told = gpt1("finetune", "study", "table.yaml", "--dry-run")
    assert told.code == 0, told.err
    assert told.out.splitlines()[0] == "to do  mine, full, seed 1"
    assert told.out.splitlines()[-1] == "runs/table: 5 cells, 0 done, 5 to do"
    ran = program("finetune", "study", "table.yaml", timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "runs/table: all cells are done" in ran.stderr
    with open(folder / "runs" / "table" / "results.csv", newline="") as file:
        every = [row for row in csv.DictReader(file) if row["metric"] == "accuracy"]
    rows = [row for row in every if row["seed"]]
    assert [row["variant"] for row in every[len(rows) :]] == ["majority", "bag of words"]
    assert [row["variant"] for row in rows] == ["full", "no pre-training"] * 2 + ["transfer 1"]
    assert all(0 <= float(row["value"]) <= 1 and float(row["seconds"]) > 0 for row in rows)
    assert {row["split"] for row in rows} == {"dev"}
    assert (folder / "runs" / "table" / "table.md").read_text().count("| mine | ") == 4
    assert (folder / "runs" / "table" / "figures" / "layer_transfer.svg").exists()
    assert "5 done, 0 to do" in gpt1("finetune", "study", "table.yaml", "--dry-run").out


@pytest.mark.slow
def test_values_are_chosen_and_rows_compared(folder: Path, gpt1: Gpt1) -> None:
    """Half of dev chooses among two rates of every cell; the other half is shown and compared, paired."""
    (folder / "task" / "dev.csv").write_text(ROWS)
    (folder / "pairs.yaml").write_text(
        """
        checkpoint: runs/small
        seeds: [1, 2]
        tasks: [{preset: finetune/table, name: mine, task.path: task, train.global_batch: 8}]
        variants: [full, no pre-training]
        overrides: {train.epochs: 1}
        split: unseen
        choose: {optimizer.lr: [1e-5, 1e-3]}
        compare:
          - {first: full, second: no pre-training, expect: above, claim: it helps}
          - {first: full, second: majority}
        jobs: 2
        """
    )
    ran = gpt1("finetune", "study", "pairs.yaml")
    assert ran.code == 0, ran.err
    place = folder / "runs" / "pairs"
    with open(place / "results.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "accuracy"]
    cells = {(row["variant"], row["seed"]): row["choice"] for row in rows if row["seed"]}
    assert len(cells) == 4
    for (variant, seed), choice in cells.items():
        tried = place / "mine" / variant.replace(" ", "-")
        scores = {}
        for rate in ("1e-5", "1e-3"):
            (run,) = tried.glob(f"*{rate}/seed-{seed}")
            entries = json.loads((run / "eval.json").read_text())
            scores[rate] = {entry["split"]: entry["metrics"]["accuracy"] for entry in entries}
            assert scores[rate].keys() == {"dev", "half"}
        best = "1e-3" if scores["1e-3"]["dev"] > scores["1e-5"]["dev"] else "1e-5"
        assert choice == f"optimizer.lr={best}"
    with open(place / "comparisons.csv", newline="") as file:
        compared = list(csv.DictReader(file))
    assert [(row["claim"], row["second"], row["task"], row["seeds"]) for row in compared] == [
        ("it helps", "no pre-training", "mine", "2"),
        ("", "majority", "mine", "2"),
    ]
    shown = [100 * float(row["value"]) for row in rows if row["split"] == "half" and row["variant"] == "full"]
    ground = next(100 * float(row["value"]) for row in rows if row["split"] == "half" and row["variant"] == "majority")
    assert float(compared[1]["difference"]) == pytest.approx(sum(shown) / 2 - ground)


@pytest.mark.slow
def test_families_are_rows_of_one_table(folder: Path, tiny_data: Path, sentence_data: Path, gpt1: Gpt1) -> None:
    """A causal and a bidirectional model, each with its own tokenizer, on a text and on a pair of texts."""
    for name, data, model in (("gpt", tiny_data, SMALL), ("bert", sentence_data, BERT)):
        make_checkpoint(folder / name, data.parent / "tokenizer", model)
    (folder / "families.yaml").write_text(
        """
        tasks:
          - {preset: finetune/table, name: one, task.path: task}
          - preset: finetune/table
            name: two
            task: {path: task, columns: {text: text, text2: other}}
        variants: {GPT-1: {checkpoint.init_from: gpt}, BERT: {checkpoint.init_from: bert}}
        overrides: {train.steps: 2, train.global_batch: 8}
        seeds: [1]
        jobs: 2
        """
    )
    for split, rows in (("train", ROWS), ("dev", DEV)):
        head, *lines = rows.splitlines()
        text = "\n".join([f"{head},other", *(f"{line},another text" for line in lines), ""])
        (folder / "task" / f"{split}.csv").write_text(text)
    ran = gpt1("finetune", "study", "families.yaml")
    assert ran.code == 0, ran.err
    with open(folder / "runs" / "families" / "results.csv", newline="") as file:
        rows = [
            (row["task"], row["variant"]) for row in csv.DictReader(file) if row["metric"] == "accuracy" and row["seed"]
        ]
    assert sorted(rows) == [(task, variant) for task in ("one", "two") for variant in ("BERT", "GPT-1")]
    table = (folder / "runs" / "families" / "table.md").read_text()
    assert "4 of 4 cells are done, from gpt, bert." in table


@pytest.mark.slow
def test_models_are_trained_first(folder: Path, tiny_data: Path, gpt1: Gpt1) -> None:
    """Every cell begins with the model of its own seed; a mistake of a task is told before anything trains."""
    text = f"""
        pretrain:
          - preset: pretrain/tiny_cpu
            name: small
            data.path: {tiny_data}
            train.steps: 4
            checkpoint: {{every: 2, keep_every: 2}}
          - {{preset: pretrain/tiny_cpu, name: wild, data.path: {tiny_data}, train.steps: 4, optimizer.lr: 1e30}}
        tasks:
          - {{preset: finetune/table, name: mine, task.path: task}}
        variants:
          small without: {{pretrained: small, task.transfer_layers: -1}}
          small early: {{pretrained: small, pretrained_step: 2}}
        overrides: {{train.steps: 2, train.global_batch: 8}}
        seeds: [1, 2]
        jobs: 2
        """
    (folder / "grid.yaml").write_text(text.replace("task.path: task", "task.path: away"))
    told = gpt1("finetune", "study", "grid.yaml")
    assert told.code == 2
    assert "grid: mine: away: no such folder" in told.err
    (folder / "grid.yaml").write_text(text.replace("pretrained_step: 2", "pretrained_step: 3"))
    told = gpt1("finetune", "study", "grid.yaml")
    assert told.code == 2
    assert "variants.small early: pretrained_step=3: small does not keep that checkpoint" in told.err
    assert not (folder / "runs" / "grid").exists()
    (folder / "grid.yaml").write_text(text)
    told = gpt1("finetune", "study", "grid.yaml", "--dry-run")
    assert told.out.splitlines()[0] == "to do  small, pre-training, seed 1", told.err
    ran = gpt1("finetune", "study", "grid.yaml", "--rehearse", "2")
    assert ran.code == 0, ran.err
    rehearsal = (folder / "runs" / "grid-rehearsal" / "table.md").read_text()
    assert "3 of 4 cells are done, from small, wild; 1 diverged." in rehearsal
    early = folder / "runs" / "grid-rehearsal" / "mine" / "small-early" / "seed-1" / "config.yaml"
    assert "/grid-rehearsal/pretrained/small/seed-1/checkpoints/step-00000001\n" in early.read_text()
    ran = gpt1("finetune", "study", "grid.yaml")
    assert ran.code == 0, ran.err
    grid = folder / "runs" / "grid"
    for seed in (1, 2):
        for row in ("small", "small-without"):
            recorded = (grid / "mine" / row / f"seed-{seed}" / "config.yaml").read_text()
            assert f"init_from: runs/grid/pretrained/small/seed-{seed}\n" in recorded
        early = (grid / "mine" / "small-early" / f"seed-{seed}" / "config.yaml").read_text()
        assert f"init_from: runs/grid/pretrained/small/seed-{seed}/checkpoints/step-00000002\n" in early
    assert "6 of 8 cells are done, from small, wild; 2 diverged." in (grid / "table.md").read_text()
    again = gpt1("finetune", "study", "grid.yaml")
    assert "runs/grid/pretrained/wild/seed-1: diverged in pre-training; wild has no cells of it\n" in again.err
    assert "6 cells, 6 done" in again.err
    other = text.replace("train.steps: 2,", "train.steps: 3,").replace("jobs: 2", "jobs: 2\n        models: grid")
    (folder / "other.yaml").write_text(other)
    told = gpt1("finetune", "study", "other.yaml", "--dry-run")
    assert "to do  mine, small, seed 1" in told.out, "it takes the models of the first one"


def test_what_is_wrong_is_one_line(folder: Path, gpt1: Gpt1) -> None:
    for arguments, says in (
        (["nowhere"], "nowhere: no such file"),
        (["table.yaml", "--jobs", "0"], "--jobs=0: at least 1 cell runs at a time"),
        (["table.yaml", "--rehearse", "1"], "--rehearse=1: a rehearsal is a part of the study; write 2 or more"),
        (["table.yaml", "task.pat=x"], "table: mine, full: task.pat: the section task has no key 'pat'"),
        (["table.yaml", "task.path=away"], "away: no such folder"),
        (["table.yaml", "checkpoint.init_from=away"], "away: no such folder; name a run folder"),
    ):
        told = gpt1("finetune", "study", *arguments)
        assert told.code == 2
        assert len(told.lines) == 1, told.err
        assert says in told.err


def test_a_study_is_not_begun_before_its_data_is_there(folder: Path, gpt1: Gpt1) -> None:
    (folder / "task" / "dev.csv").unlink()
    assert gpt1("finetune", "study", "table.yaml").code == 2
    assert not (folder / "runs" / "table").exists()
    assert json.loads((folder / "runs" / "small" / "DONE").read_text())["step"] == 2
