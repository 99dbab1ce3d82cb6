"""`evaluate` of a run on its own data and on others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from gpt1_ds.cli import main
from gpt1_ds.tracking.record import of_models, of_own_data, of_run


def test_other_data_is_scored_and_replaces_nothing(fine_tuned: Callable[[str], Path], in_folder: Path) -> None:
    run = Path(shutil.copytree(fine_tuned("single"), in_folder / "r"))
    own = json.loads((run / "eval.json").read_text())
    shutil.copytree(fine_tuned("single").parents[1], in_folder / "data", ignore=shutil.ignore_patterns("runs"))
    lines = (in_folder / "data" / "dev.jsonl").read_text().splitlines(keepends=True)
    (in_folder / "data" / "dev.jsonl").write_text("".join(lines[:7]))
    words = ["evaluate", "--checkpoint", str(run), "--every", "task.path=data", "--nproc", "1"]
    assert main(words) == 0
    found = json.loads((run / "eval.json").read_text())
    assert of_run(found) == own
    assert [entry for entry in of_models(of_own_data(found)) if entry["step"] == own[0]["step"]] == own
    others = [entry for entry in of_models(found) if entry["data"] != own[0]["data"]]
    assert own[0]["step"] in {entry["step"] for entry in others}
    assert main(words) == 0
    assert json.loads((run / "eval.json").read_text()) == found
