"""`evaluate` of a run on its own data and on others."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt1_ds.cli import main
from gpt1_ds.data.build import build
from gpt1_ds.tracking.record import of_models, of_own_data, of_run
from tests.helpers.foreign import make_checkpoint


def test_other_data_is_scored_and_replaces_nothing(fine_tuned: Callable[[str], Path], in_folder: Path) -> None:
    run = Path(shutil.copytree(fine_tuned("single"), in_folder / "r"))
    own = json.loads((run / "eval.json").read_text())
    shutil.copytree(fine_tuned("single").parents[1], in_folder / "data", ignore=shutil.ignore_patterns("runs"))
    lines = (in_folder / "data" / "dev.jsonl").read_text().splitlines(keepends=True)
    (in_folder / "data" / "dev.jsonl").write_text("".join(lines[:7]))
    arguments = ["evaluate", "--checkpoint", str(run), "--every", "task.path=data", "--nproc", "1"]
    assert main(arguments) == 0
    found = json.loads((run / "eval.json").read_text())
    assert of_run(found) == own
    assert [entry for entry in of_models(of_own_data(found)) if entry["step"] == own[0]["step"]] == own
    others = [entry for entry in of_models(found) if entry["data"] != own[0]["data"]]
    assert own[0]["step"] in {entry["step"] for entry in others}
    assert main(arguments) == 0
    assert json.loads((run / "eval.json").read_text()) == found


@pytest.mark.parametrize("left", [0, 100])
def test_a_damaged_configuration_is_named(
    left: int, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is read of it would be answered with advice about the text, or about YAML."""
    folder = make_checkpoint(tmp_path / "step-00000000", tiny_data.parent / "tokenizer")
    os.truncate(folder / "config.yaml", left)
    assert main(["evaluate", "--checkpoint", str(folder)]) == 2
    assert capsys.readouterr().err.startswith(
        f"gpt1-ds: {folder}/config.yaml: damaged: {left} bytes, the manifest says"
    )


def test_text_that_is_not_what_it_was_is_named(
    tiny_data: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a run held out may be trained on in the new split, and the other way round."""
    shutil.copytree(tiny_data.parent, in_folder / "made")
    arguments = ["data.path=made/data", "run.name=r", "model.layers=1", "model.context=32", "train.steps=1"]
    assert main(["pretrain", *arguments, "--nproc", "1"]) == 0
    assert main(["evaluate", "runs/r", "--nproc", "1"]) == 0
    assert "built again" not in capsys.readouterr().err
    shutil.rmtree("made/data")
    build([Path("made/text")], Path("made/tokenizer"), Path("made/data"), workers=1, validation=0.3)
    assert main(["evaluate", "runs/r", "--nproc", "1"]) == 0
    assert (
        "made/data: was built again since runs/r/checkpoints/step-00000001 was trained on it" in capsys.readouterr().err
    )
    path = Path("made/data/validation-00000.bin")
    path.write_bytes(path.read_bytes()[::-1])
    assert main(["evaluate", "runs/r", "--nproc", "2"]) == 2
    assert f"gpt1-ds: {path}: its sha256 differs" in capsys.readouterr().err
