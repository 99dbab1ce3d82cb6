"""The files that the README tells a reader to begin with are those in which a training run happens."""

from __future__ import annotations

import re
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

from gpt1_ds.launcher import launch
from tools import runs

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gpt1_ds"
FILES, LINES, SHARE = 14, 2430, 0.56


def traced(arguments: list[str]) -> dict[str, set[int]]:
    """Runs on the rank: the lines of the package that the steps execute, by file; not what comes before them."""
    from gpt1_ds.training.pretraining import pretrain
    from gpt1_ds.training.trainer import Trainer

    steps = Trainer.train
    executed: dict[str, set[int]] = defaultdict(set)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(str(PACKAGE)):
            return None
        executed[file].add(frame.f_lineno)
        return trace

    def train(self: Trainer) -> Any:
        threading.settrace(trace)
        sys.settrace(trace)
        try:
            return steps(self)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    Trainer.train = train  # type: ignore[method-assign]
    assert pretrain(runs.configuration(arguments)) == 0
    return {str(Path(file).relative_to(ROOT)): lines for file, lines in executed.items()}


def test_it_is_what_runs(tiny_data: Path, tmp_path: Path) -> None:
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=3", "checkpoint.every=3"]
    (executed,) = launch.run("tests.guards.test_reading_path:traced", (arguments,), 1)
    section = (ROOT / "README.md").read_text().partition("## Reading the code")[2].partition("\n## ")[0]
    named = re.findall(r"\]\((gpt1_ds/[\w/]+\.py)\)", section)
    counts = {file: len(lines) for file, lines in executed.items()}
    share = sum(counts.get(file, 0) for file in named) / sum(counts.values())
    most = ", ".join(f"{file} {count}" for file, count in sorted(counts.items(), key=lambda item: -item[1])[:45])
    assert share >= SHARE, f"{share:.0%} of {sum(counts.values())} lines in the files named; most lie in {most}"
    assert len(named) <= FILES
    assert sum((ROOT / file).read_text().count("\n") for file in named) <= LINES
