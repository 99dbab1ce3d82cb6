"""Trials of a W&B sweep as its own agent starts them: offline, and in a job with a server that gives the values.

The agent is the client's: from a trial's values it makes the command line, the environment and the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpt1_ds.common.rundir import RunDir
from tests.helpers.wandb_files import read_segments
from tests.helpers.wandb_server import Sweep, serving
from tools import runs

ROOT = Path(__file__).parents[2]
AGENT = """
import json, multiprocessing, sys
from wandb.wandb_agent import Agent
command, trials = json.loads(sys.argv[1])
agent = Agent(None, multiprocessing.Queue(), sweep_id="sweep1")
agent._sweep_command = command
for run_id, values in trials:
    chosen = {key: {"value": value} for key, value in values.items()}
    agent._command_run({"run_id": run_id, "program": "gpt1-ds", "args": chosen})
print([process.wait() for process in agent._run_processes.values()])
"""


def run_agent(folder: Path, command: list[str], trials: list[tuple[str, dict[str, float]]]) -> str:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_SWEEP_ID": "sweep1", "WANDB_ENTITY": "someone"}
    script = [sys.executable, "-c", AGENT, json.dumps([command, trials])]
    done = subprocess.run(script, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_two_trials_at_once_and_one_again(tiny_data: Path, tmp_path: Path) -> None:
    own = [*runs.TINY, f"data.path={tiny_data}", "train.steps=3", "run.name=tried", "tracking.wandb=offline"]
    own += ["tracking.entity=another"]  # W&B takes the sweep's
    command = [sys.executable, "-m", "gpt1_ds", "pretrain", *own, "${args_no_hyphens}"]
    trials = [("abc123", {"optimizer.lr": 1e-3, "run.seed": 1}), ("def456", {"optimizer.lr": 1e-2, "run.seed": 2})]
    assert run_agent(tmp_path, command, trials) == "[0, 0]"
    losses = []
    for trial, values in trials:
        run_dir = RunDir(tmp_path / "runs" / "tried" / trial)
        (segment,) = read_segments(run_dir.path)
        assert (segment.id, segment.sweep, segment.entity) == (trial, "sweep1", "someone")
        assert segment.config["optimizer"]["lr"] == values["optimizer.lr"]
        assert dict(segment.values("train/loss")) == runs.losses(run_dir)
        losses.append(list(runs.losses(run_dir).values()))
    assert losses[0] != losses[1]
    more = [argument.replace("train.steps=3", "train.steps=5") for argument in command]
    assert run_agent(tmp_path, more, trials[:1]) == "[0]"
    again = RunDir(tmp_path / "runs" / "tried" / "abc123")
    assert list(runs.losses(again)) == [1, 2, 3, 4, 5], "the agent's own retry resumes"
    assert {segment.id for segment in read_segments(again.path)} == {"abc123"}


@pytest.mark.slow
def test_a_key_that_is_none_fails_the_trial_in_one_line(tiny_data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpt1_ds", "pretrain", *runs.TINY, f"data.path={tiny_data}", "${args_no_hyphens}"]
    assert run_agent(tmp_path, command, [("abc123", {"optimizer.lrr": 1e-3})]) == "[2]"
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_each_task_of_an_array_runs_one_trial(tiny_data: Path, tmp_path: Path) -> None:
    own = [*runs.TINY, f"data.path={tiny_data}", "train.steps=3", "run.name=tried", "tracking.wandb=online"]
    own += ["tracking.artifacts=off"]  # for which this server has no answers
    command = ["gpt1-ds", "pretrain", "--nproc", "${envvar:GPT1_DS_RANKS}", *own, "${args_no_hyphens}"]
    trials = [("abc123", {"optimizer.lr": 1e-3}), ("def456", {"optimizer.lr": 1e-2})]
    with serving() as server:
        sweep = server.sweeps["sweep1"] = Sweep(json.dumps({"command": command}), list(trials))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = {**os.environ, **server.environment, "PYTHONPATH": str(ROOT), "PATH": path}
        for task in (1, 2):
            script = ["bash", str(ROOT / "launch" / "agent.sbatch"), "someone/p/sweep1"]
            done = subprocess.run(script, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            assert len(sweep.waiting) == 2 - task
        for trial, values in trials:
            shown = server.runs[f"someone/p/{trial}"]
            assert shown.config["optimizer"]["lr"] == values["optimizer.lr"]
            assert dict(shown.values("train/loss")) == runs.losses(RunDir(tmp_path / "runs" / "tried" / trial))
