"""`train.profile` as a person uses it: the lines on the terminal, the page, the section of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import finetuning
from tests.helpers.program import assert_refused
from tools import small_tasks
from tools.runs import TINY


def said_by_rank_0() -> list[str]:
    """The lines that a person reads, from the log: ranks do not write to a test's terminal."""
    lines = Path("runs/r/logs/rank-0.log").read_text().splitlines()
    return [line.partition(" INFO gpt1_ds: ")[2] for line in lines]


def test_lines_page_and_report(gpt1, tiny_data: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = ["pretrain", *TINY, f"data.path={tiny_data}", "run.name=r", "train.steps=6", "train.profile=2:5"]
    done = gpt1(*arguments, "--nproc", "1")
    assert done.code == 0, done.err
    said = said_by_rank_0()
    (first,) = [line for line in said if line.startswith("profile of steps 2 to 4, ")]
    assert first.endswith("mean of ranks and steps: runs/r/profile")
    table = {line.split()[0] for line in said if line.endswith("%")}
    assert {"data", "forward", "loss", "backward", "reduce", "optimizer"} <= table
    assert done.lines[-1] == "runs/r/profile/summary.html: where the time of a step goes"
    page = Path("runs/r/profile/summary.html")
    assert page.read_text().count("<svg") == 3
    assert gpt1("report", "runs/r").code == 0
    assert "<h2>Profile</h2>" in Path("runs/r/report.html").read_text()
    drawn = page.stat().st_mtime_ns
    again = gpt1(*arguments, "train.steps=7", "--nproc", "1")
    assert again.code == 0, again.err
    said = said_by_rank_0()
    assert "train.profile=2:5: the run continues after step 6; nothing is profiled" in said
    assert [line for line in said if line.startswith("profile of steps")] == [first]
    assert page.stat().st_mtime_ns == drawn


def test_of_fine_tuning(gpt1, tiny_data: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    task = small_tasks.make_task(tmp_path / "task", "single", train=24, dev=6)
    model = ["model.layers=1", "model.width=32", "model.heads=2", "model.context=48", "run.name=r"]
    arguments = [*task, *model, *finetuning.TRAINING, f"task.tokenizer={tiny_data.parent / 'tokenizer'}"]
    done = gpt1("finetune", *arguments, "train.steps=3", "train.profile=2:99", "--nproc", "1")
    assert done.code == 0, done.err
    assert any(line.startswith("profile of steps 2 to 3, ") for line in said_by_rank_0())
    assert Path("runs/r/profile/summary.html").exists()


@pytest.mark.parametrize("window", ["5", "9:3", "a:b", "0:4", "3:3"])
def test_wrong_windows(gpt1, window: str) -> None:  # type: ignore[no-untyped-def]
    assert_refused(gpt1("pretrain", f"train.profile={window}"), f"train.profile={window}", "START:STOP")
