"""The worked examples of the guide questions-and-tags, with the program itself; and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt1_ds.commands import guide
from gpt1_ds.config import ModelConfig
from tests.helpers.foreign import make_checkpoint
from tools.cluster import Result

ENCODER = ModelConfig(
    **{"layers": 2, "width": 32, "heads": 2, "context": 48, "mask": "bidirectional", "embedding_norm": True},
    **{"head": "masked", "activation": "gelu", "segments": 2},
)
Program = Callable[..., "subprocess.CompletedProcess[str]"]
Gpt1 = Callable[..., Result]
START = "checkpoint.init_from=runs/bert_books_cpu"


@pytest.fixture
def folder(tmp_path: Path, sentence_data: Path) -> Path:
    """The program's folder, with a checkpoint where the guide has one, and the guide's files."""
    make_checkpoint(tmp_path / "runs" / "bert_books_cpu", sentence_data.parent / "tokenizer", ENCODER)
    for name, lines in re.findall(r"cat > (\S+) <<'END'\n(.*?)END\n", guide.text("questions-and-tags"), re.DOTALL):
        for split in ("train", "dev"):
            file = tmp_path / name.replace("train", split)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(lines)
    return tmp_path


def command(beginning: str) -> list[str]:
    """The guide's command that begins so, but for the program's name."""
    (line,) = re.findall(rf"^gpt1-ds ({beginning}.*)$", guide.text("questions-and-tags"), re.MULTILINE)
    return line.split()  # type: ignore[no-any-return]


def test_questions(folder: Path, program: Program, gpt1: Gpt1) -> None:
    done = program(*command(f"finetune {START} task.name=table task.kind=span"), "run.name=asked")
    assert done.returncode == 0, done.stderr
    run = folder / "runs" / "asked"
    found = json.loads((run / "predictions" / "table-dev.json").read_text())
    assert found.keys() == {"0", "1"}
    (dev,) = json.loads((run / "eval.json").read_text())
    assert {"f1", "exact_match", "null_threshold"} == dev["metrics"].keys()
    context = "Jane  Austen\nwrote it."
    (folder / "lines.jsonl").write_text(json.dumps({"question": "Who wrote it?", "context": context}) + "\n")
    answered = gpt1("predict", "--checkpoint", str(run), "--input", "lines.jsonl")
    assert answered.code == 0, answered.err
    answer = json.loads(answered.out)
    assert answer["text"] == context[answer["start"] : answer["stop"]]
    shown = gpt1("predict", "--checkpoint", str(run), "Who wrote it?", context)
    assert shown.out == " ".join(answer["text"].split()) + "\n"
    scored = gpt1("evaluate", "--checkpoint", str(run), "--nproc", "1")
    assert scored.code == 0, scored.err
    tasks = [entry["task"] for entry in json.loads((run / "eval.json").read_text())]
    assert {f"control/{name}/table" for name in ("whole paragraph", "first sentence", "word overlap")} < set(tasks)


def test_tags(folder: Path, gpt1: Gpt1) -> None:
    done = gpt1(*command(f"finetune {START} task.name=table task.kind=tagging"), "run.name=asked", "--nproc", "1")
    assert done.code == 0, done.err
    run = folder / "runs" / "asked"
    lines = (run / "predictions" / "table-dev.tsv").read_text().splitlines()
    assert [len(line.split("\t")[1].split()) for line in lines[1:]] == [6, 3]
    (folder / "lines.txt").write_text("Jane Austen lived .\nShe wrote\n")
    answered = gpt1("predict", "--checkpoint", str(run), "--input", "lines.txt")
    assert [len(line.split()) for line in answered.out.splitlines()] == [4, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task.kind=span", "task.path=data/ask", "task.form=text"], "task.form=text answers a whole text"),
        (["task.kind=span", "task.path=data/ask", "task.metric=entity_f1"], "does not fit a task of kind span"),
        (["task.kind=span", "task.path=data/ask", "task.stride=0"], "task.stride=0 must be at least 1"),
        (["task.kind=span", "task.path=data/ask", "task.label_smoothing=0.1"], "the head of this task gives a span"),
        (["task.kind=tagging", "task.path=data/nothing"], "data/nothing: no such folder"),
        (["task.kind=tagging", "task.path=data/ask"], "has no column tokens"),
    ],
)
def test_what_is_refused(words: list[str], message: str, folder: Path, gpt1: Gpt1) -> None:
    done = gpt1("finetune", START, "task.name=table", *words, "--dry-run")
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
