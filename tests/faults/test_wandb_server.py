"""What a server of W&B gets from a run that is online, from one that is uploaded later, and from one that continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.cli import main
from tests.helpers.wandb_server import KEY, serving
from tools import runs


def test_online_and_later(tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways show every logged step once, with the values that metrics.jsonl has, and the facts of a study."""
    facts = ["tracking.entity=team", "tracking.project=tried", "tracking.tags=[small]", "tracking.facts={arm: deep}"]
    arguments = [f"data.path={tiny_data}", "train.steps=6", "tracking.artifacts=off", *facts]
    with serving() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for mode in ("online", "offline"):
            own = [*arguments, f"run.dir={tmp_path / mode}", f"tracking.wandb={mode}"]
            assert runs.with_variables(server.environment)(own, 1) == 0
            run_dir = runs.folder(own)
            place = f"team/tried/{(run_dir.wandb / 'id').read_text().strip()}"
            if mode == "offline":
                assert place not in server.runs
                assert main(["tracking", "sync", str(run_dir.path)]) == 0
            shown = server.runs[place]
            assert dict(shown.values("train/loss")) == runs.losses(run_dir)
            assert len(shown.values("train/loss")) == 6
            assert shown.is_complete
            assert shown.tags == ["small"]
            assert shown.config["arm"] == "deep"
            assert shown.config["optimizer"]["lr"] == runs.configuration(own).optimizer.lr
            written = [path for path in run_dir.path.rglob("*") if path.is_file()]
            assert not [path for path in written if KEY.encode() in path.read_bytes()]


def test_a_run_that_continues_is_one_run_there(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two segments that were written offline are uploaded once, and the run continues online."""
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "tracking.artifacts=off"]
    with serving() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for steps, mode in ((3, "offline"), (6, "offline"), (9, "online"), (12, "online")):
            own = [*arguments, f"train.steps={steps}", f"tracking.wandb={mode}"]
            assert runs.with_variables(server.environment)(own, 1) == 0
            if steps == 6:
                for uploaded, before in ((2, 0), (0, 2)):
                    assert main(["tracking", "sync", str(runs.folder(own).path)]) == 0
                    assert f"{uploaded} segments uploaded, {before} were before" in capsys.readouterr().out
        (shown,) = server.runs.values()
        assert shown.values("train/loss") == list(runs.losses(runs.folder(arguments)).items())
