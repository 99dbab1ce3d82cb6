"""What a person sees of the program on a terminal of 80 columns."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from gpt1_ds.monitoring import heartbeat
from tests.helpers.terminal import BAR, Terminal, program
from tools.runs import TINY

STEPS = 60


def pretrain(data: Path, *arguments: str) -> list[str]:
    return ["-m", "gpt1_ds", "pretrain", *TINY, f"data.path={data}", "checkpoint.every=0", *arguments]


def assert_only_the_last_line_is_a_bar(terminal: Terminal) -> None:
    for lines in terminal.moments:
        assert not [line for line in lines[:-1] if BAR in line], "\n".join(lines)


def bars(terminal: Terminal) -> list[str]:
    return [lines[-1] for lines in terminal.moments if BAR in lines[-1]]


def assert_left_clean(terminal: Terminal) -> None:
    assert BAR not in "".join(terminal.lines), terminal.lines
    assert not terminal.screen.cursor.hidden
    assert terminal.screen.cursor.x == 0
    assert b"\x1b[?25l" not in terminal.raw, "a rank that is killed could not show the cursor again"


@pytest.mark.slow
def test_a_run_with_evaluation(tiny_data: Path, tmp_path: Path) -> None:
    arguments = [f"train.steps={STEPS}", "train.log_every=20", "train.eval_every=15", "train.eval_batches=0"]
    with program(pretrain(tiny_data, *arguments), tmp_path) as terminal:
        terminal.watch()
        assert terminal.process.wait() == 0
    assert_only_the_last_line_is_a_bar(terminal)
    assert_left_clean(terminal)
    log = (tmp_path / "runs" / "run" / "logs" / "rank-0.log").read_text()
    assert "\x1b" not in log
    logged = [f"step {step}/{STEPS}  loss" for step in (1, 20, 40, 60)]
    evaluated = [f"step {step}: held-out loss" for step in (15, 30, 45, 60)]
    for what in [*logged, *evaluated]:
        assert [what in line for line in terminal.lines].count(True) == 1, terminal.lines
        assert log.count(what) == 1
    assert all(len(bar) <= 80 and f"/{STEPS} " in bar for bar in bars(terminal)), bars(terminal)
    assert any("loss" in bar and "tokens/s" in bar for bar in bars(terminal)), bars(terminal)


@pytest.mark.slow
def test_two_ranks_are_interrupted_by_ctrl_c(tiny_data: Path, tmp_path: Path) -> None:
    arguments = ["train.steps=100000", "train.log_every=100", "train.eval_every=50", "--nproc", "2"]
    with program(pretrain(tiny_data, *arguments), tmp_path) as terminal:
        terminal.watch(lambda: "step 200/100000" in "".join(terminal.lines))
        os.write(terminal.descriptor, b"\x03")
        terminal.watch()
        assert terminal.process.wait() == 75
    assert_only_the_last_line_is_a_bar(terminal)
    assert_left_clean(terminal)
    shown = "".join(terminal.lines)
    assert [step for step in (50, 100, 150, 200) if f"step {step}: held-out loss" not in shown] == [], terminal.lines
    (asked,) = [at for at, line in enumerate(terminal.lines) if line.startswith("asked to stop: the run saves")]
    (stopped,) = [at for at, line in enumerate(terminal.lines) if line.startswith("runs/run: stopped to be continued")]
    assert asked < stopped, terminal.lines
    said = "".join("".join(terminal.lines[asked:]).split())  # lines are wider than the screen
    assert "arewritten);Ctrl-Cagainendsitwithoutsaving" in said
    assert said.endswith("".join(["tocontinue:", sys.executable, *pretrain(tiny_data, *arguments)])), terminal.lines


def test_the_bar_moves_without_logged_steps_and_a_killed_rank_leaves_nothing_of_it(
    tiny_data: Path, tmp_path: Path
) -> None:
    arguments = ["train.steps=100000", "train.log_every=100000", "--nproc", "2"]
    with program(pretrain(tiny_data, *arguments), tmp_path) as terminal:
        terminal.watch(lambda: len({bar.split("/")[0] for bar in bars(terminal)}) >= 5)
        rank = heartbeat.read(tmp_path / "runs" / "run" / "beats", 0)
        assert rank is not None
        os.kill(rank.presence.pid, signal.SIGKILL)
        terminal.watch()
        assert terminal.process.wait() == 1
    assert_only_the_last_line_is_a_bar(terminal)
    assert_left_clean(terminal)
    assert sum("loss" in line for line in terminal.lines) == 1, "the first step"
    assert "killed by SIGKILL" in "".join(terminal.lines[-2:])  # it may be wider than the screen
