"""The whole way of the guide your-text, from a Parquet file to a score of the harness, as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpt1_ds.commands import guide
from tests.helpers.documents import ROOT


@pytest.mark.slow
def test_a_stranger_walks_it_in_an_empty_folder(tmp_path: Path) -> None:
    section = guide.text("your-text").partition("## The whole way")[2].partition("\n## ")[0]
    (lines,) = re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL)
    program = tmp_path / "bin" / "gpt1-ds"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpt1_ds "$@"\n')
    program.chmod(0o700)
    path = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "cache")}
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd=tmp_path / "empty",
        env={**environment, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "OpenAIGPTModel" in done.stdout
    run = tmp_path / "empty" / "runs" / "tiny"
    assert (run / "report.html").exists()
    scores = {entry["task"]: entry["metrics"] for entry in json.loads((run / "eval.json").read_text())}
    assert scores["lm-eval/last_words"]["examples"] == 2
