"""What is asked of trackers before a run, and who a trial of a W&B sweep is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import load
from gpt1_ds.tracking.sinks import library_problems, values_of
from gpt1_ds.tracking.wandb import as_trial, run_id, start


def test_a_library_that_is_not_there_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load([], ["tracking.tensorboard=true", "tracking.trackio=true"])
    assert list(library_problems(config)) == []
    find = importlib.util.find_spec

    def find_others(name: str, *more: Any) -> Any:
        return None if name == "trackio" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find_others)
    (problem,) = library_problems(config)
    assert problem.startswith("tracking.trackio=true: trackio is not installed: pip install 'gpt1-ds[tracking]'")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert list(library_problems(load())) == [], "what is not asked for may be missing"
    (problem,) = library_problems(load([], ["tracking.wandb=offline"]))
    assert problem == ("tracking.wandb=offline: wandb is not installed: pip install wandb, or leave the key out")


def test_a_project_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"tracking.project is empty"):
        load([], ["tracking.trackio=true", "tracking.project="])


def test_numbers_by_their_names() -> None:
    record = {"kind": "task", "task": "cola", "split": "dev", "step": 3, "metrics": {"f1": 0.5, "other": None}}
    assert values_of(record) == {"cola/dev/step": 3, "cola/dev/f1": 0.5}
    watched = {"kind": "train", "step": 3, "noise_scale": None, "gradient_norms": {"head": 0.5, "norms": None}}
    assert values_of(watched) == {"train/step": 3, "train/gradient_norms/head": 0.5}
    score = {"kind": "score", "step": 3, "task": "zero-shot/blimp", "split": "test", "metrics": {"accuracy": 0.5}}
    assert values_of(score) == {"zero-shot/blimp/step": 3, "zero-shot/blimp/accuracy": 0.5}


def test_the_entity_is_passed_on(tmp_path: Path) -> None:
    config = load([], ["tracking.entity=team", "tracking.wandb=offline"])
    assert start(config, RunDir(tmp_path), "pretrain", {}).entity == "team"


def test_trials_of_a_sweep_have_folders_and_ids_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load([], ["run.name=a", "tracking.wandb=offline"])
    assert as_trial(config) == config
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    assert as_trial(config) == config, "an id alone is no sweep"
    monkeypatch.setenv("WANDB_SWEEP_ID", "s")
    names = []
    for trial in ("abc123", "def-456"):
        monkeypatch.setenv("WANDB_RUN_ID", trial)
        found = as_trial(config)
        names.append(found.run.name)
        assert as_trial(found) == found
        assert run_id(RunDir(tmp_path / trial)) == trial
    assert names == ["a/abc123", "a/def-456"]
    assert capsys.readouterr().err == ""
    as_trial(load([], ["run.name=a"]))
    assert "the sweep sees nothing of this run; set tracking.wandb=online" in capsys.readouterr().err
    monkeypatch.setenv("WANDB_RUN_ID", "../x")
    with pytest.raises(ConfigError, match=r"WANDB_RUN_ID='../x' is no id of a W&B run"):
        as_trial(config)
