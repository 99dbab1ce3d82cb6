"""Whose a run folder is, and what becomes of what is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.config import Config, load, to_yaml
from gpt1_ds.training import claim
from tools import runs

ARGUMENTS = ["model.vocab_size=500", "train.steps=9"]


def configured(*arguments: str) -> Config:
    return load([], [*ARGUMENTS, *arguments])


@pytest.fixture
def run_dir(in_folder: Path) -> RunDir:
    """A folder in which a run wrote its configuration and a log, and failed before its first step."""
    found = claim.run_folder(configured())
    found.create()
    found.config.write_text(to_yaml(configured()))
    found.environment.write_text("{}")
    found.rank_log(0).write_text("a traceback")
    return found


def log_steps(run_dir: RunDir, steps: int) -> None:
    run_dir.metrics.write_text("".join(json.dumps({"kind": "train", "step": n + 1}) + "\n" for n in range(steps)))


def save(run_dir: RunDir, step: int = 4) -> None:
    run_dir.checkpoint(step).mkdir()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_never_took_a_step_claims_nothing(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    claim.take(run_dir, configured("model.layers=3", "data.path=y"))
    said = capsys.readouterr().err
    assert said.startswith("runs/run: no step was trained there: a new run begins (")
    assert "model.layers 2 -> 3" in said
    assert not run_dir.config.exists()
    assert run_dir.rank_log(0).read_text() == "a traceback"
    (event,) = read_jsonl(run_dir.events)
    assert event["event"] == "replaced"
    assert event["changes"]["model.layers"] == [2, 3]
    assert names(run_dir.path.parent) == {"run"}, "nothing is moved"


def test_steps_that_were_never_saved_are_moved_aside(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    log_steps(run_dir, 5)
    claim.take(run_dir, configured("optimizer.lr=1e-4"))
    said = capsys.readouterr().err
    assert "nothing was saved of its 5 logged steps" in said
    assert "what is there moves to runs/run.replaced-1 (optimizer.lr 0.001 -> 0.0001)" in said
    aside = run_dir.path.with_name("run.replaced-1")
    assert names(aside) == {"checkpoints", "config.yaml", "env.json", "logs", "metrics.jsonl"}
    assert names(run_dir.path) == {"checkpoints", "events.jsonl", "logs"}
    assert list(run_dir.logs.iterdir()) == []
    assert next(read_jsonl(run_dir.events))["moved_to"] == str(aside)


def test_a_checkpoint_claims_its_folder(run_dir: RunDir) -> None:
    log_steps(run_dir, 5)
    save(run_dir)
    with pytest.raises(ConfigError, match=r"belongs to another configuration: model.layers was 2 and is now 3"):
        claim.decide(run_dir, configured("model.layers=3"))
    assert not claim.decide(run_dir, configured("checkpoint.every=7", "train.steps=99")).replaces
    run_dir.checkpoint(4).rename(run_dir.checkpoints / "step-00000004.damaged-1")
    with pytest.raises(ConfigError, match="belongs to another configuration"):
        claim.decide(run_dir, configured("model.layers=3"))


def test_the_same_run_finds_its_folder_as_it_was(run_dir: RunDir) -> None:
    before = names(run_dir.path)
    claim.take(run_dir, configured("guard.z=8"))
    log_steps(run_dir, 5)
    claim.take(run_dir, configured("guard.z=8"))
    assert names(run_dir.path) == before | {"metrics.jsonl"}


def test_never_begins_anew_and_deletes_nothing(run_dir: RunDir) -> None:
    save(run_dir)
    (run_dir.path / "eval.json").write_text("[]")
    run_dir.lock.write_text("{}")
    run_dir.slurm.mkdir()
    for number in (1, 2):
        claim.take(run_dir, configured("checkpoint.resume=never"))
        assert names(run_dir.path) == {".lock", "checkpoints", "events.jsonl", "logs", "slurm"}
        assert (run_dir.path.with_name(f"run.replaced-{number}") / "checkpoints" / "step-00000004").is_dir()
        save(run_dir)


@pytest.mark.parametrize(
    "variable", ["SLURM_RESTART_COUNT", "GPT1_DS_CONTINUES", "GPT1_DS_RUN", "TORCHELASTIC_RESTART_COUNT"]
)
def test_the_next_job_of_a_run_does_not_begin_anew_again(
    run_dir: RunDir, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run_dir)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert claim.decide(run_dir, configured("checkpoint.resume=never")).replaces
    monkeypatch.setenv(variable, "1")
    assert not claim.decide(run_dir, configured("checkpoint.resume=never")).replaces


def test_results_without_a_checkpoint_are_kept(run_dir: RunDir) -> None:
    """Of task.form=frozen, and of studies that remove checkpoints."""
    run_dir.done.write_text('{"step": 0}')
    claim.take(run_dir, configured("model.layers=3"))
    assert (run_dir.path.with_name("run.replaced-1") / "DONE").exists()


def test_a_configuration_that_cannot_be_read_is_no_claim(run_dir: RunDir) -> None:
    run_dir.config.write_text("model: [")
    assert claim.decide(run_dir, configured()).why == "config.yaml cannot be read"
    save(run_dir)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        claim.decide(run_dir, configured())


def test_the_folder_of_a_study_is_no_run_s(run_dir: RunDir) -> None:
    run_dir.study.write_text("{}")
    with pytest.raises(ConfigError, match=r"run\.name: runs/run is the folder of a sweep or study; choose another"):
        claim.decide(run_dir, configured("checkpoint.resume=never"))


def test_a_store_that_holds_the_run_refuses_before_anything_moves(tiny_data: Path, tmp_path: Path) -> None:
    arguments = [
        f"data.path={tiny_data}",
        f"run.dir={tmp_path}",
        "train.steps=2",
        f"checkpoint.mirror=file://{tmp_path}/store",
    ]
    assert runs.pretrain(arguments, 1) == 0
    with pytest.raises(ConfigError, match=r"holds a run of this name, and checkpoint\.resume=never begins anew"):
        runs.pretrain([*arguments, "checkpoint.resume=never"], 1)
    assert [folder.name for folder in tmp_path.iterdir() if "replaced" in folder.name] == []
    assert steps_in(runs.folder(arguments).checkpoints)
