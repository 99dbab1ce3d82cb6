"""The worked examples of the guide questions-and-tags, with the program itself; and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

from gpt1_ds.commands import guide
from gpt1_ds.config import ModelConfig
from tests.helpers.foreign import ENCODER, make_checkpoint
from tools.cluster import Result

WRITER = ModelConfig(
    **{"kind": "encoder_decoder", "layers": 2, "width": 32, "heads": 2, "head_width": 12, "context": 64},
    **{"norm": "pre", "norm_kind": "rms", "norm_eps": 1e-6, "positions": "relative", "biases": False, "init": "t5"},
    **{"attention_scale": "one", "activation": "gated_gelu", "ffn": 48, "ffn_dropout": 0.1, "tied": False},
)
Program = Callable[..., "subprocess.CompletedProcess[str]"]
Gpt1 = Callable[..., Result]
START = "checkpoint.init_from=runs/bert_books_cpu"
WRITES = "checkpoint.init_from=runs/t5_books_cpu"


@pytest.fixture
def folder(tmp_path: Path, sentence_data: Path, span_data: Path) -> Path:
    """The program's folder, with checkpoints where the guide has some, and the guide's files."""
    make_checkpoint(tmp_path / "runs" / "bert_books_cpu", sentence_data.parent / "tokenizer", ENCODER)
    make_checkpoint(tmp_path / "runs" / "t5_books_cpu", span_data.parent / "tokenizer", WRITER)
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
    done = program(*command(f"finetune {START} task.name=table task.kind=span"))
    assert done.returncode == 0, done.stderr
    run = folder / "runs" / "ask"
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


def test_each_example_has_a_run_of_its_own() -> None:
    """The guide is followed from its first line to its last: a second run of the same name would be refused."""
    lines = re.findall(r"^gpt1-ds finetune .*task.name=table.*$", guide.text("questions-and-tags"), re.MULTILINE)
    names = [name for line in lines for name in re.findall(r"run\.name=(\S+)", line)]
    assert len(set(names)) == len(lines) == 3


def test_tags(folder: Path, gpt1: Gpt1) -> None:
    done = gpt1(*command(f"finetune {START} task.name=table task.kind=tagging"), "--nproc", "1")
    assert done.code == 0, done.err
    run = folder / "runs" / "names"
    lines = (run / "predictions" / "table-dev.tsv").read_text().splitlines()
    assert [len(line.split("\t")[1].split()) for line in lines[1:]] == [6, 3]
    (folder / "lines.txt").write_text("Jane Austen lived .\nShe wrote\n")
    answered = gpt1("predict", "--checkpoint", str(run), "--input", "lines.txt")
    assert [len(line.split()) for line in answered.out.splitlines()] == [4, 2]


def test_translation(folder: Path, gpt1: Gpt1) -> None:
    """The export's own settings write what the checkpoint writes."""
    beams = "task.decoding={beams: 3, length_alpha: 0.5, early_end: true}"
    arguments = [beams, "task.target_length=12", "task.prefix=translate: "]
    done = gpt1(*command(f"finetune {WRITES} task.name=table task.kind=generation"), *arguments, "--nproc", "1")
    assert done.code == 0, done.err
    run = folder / "runs" / "words"
    assert json.loads((run / "predictions" / "table-dev.json").read_text()).keys() == {"0", "1"}
    (dev,) = json.loads((run / "eval.json").read_text())
    assert dev["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert {"bleu", "rouge1", "rouge2", "rougeLsum", "exact_match", "f1"} == dev["metrics"].keys()
    (folder / "lines.txt").write_text("a dog plays\ntwo dogs\n")
    answered = gpt1("predict", "--checkpoint", str(run), "--input", "lines.txt")
    assert answered.code == 0, answered.err
    assert len(answered.out.splitlines()) == 2
    (folder / "lines.jsonl").write_text('{"source": "a dog plays"}\n')
    told = gpt1("predict", "--checkpoint", str(run), "--input", "lines.jsonl")
    assert [" ".join(json.loads(told.out)["text"].split())] == answered.out.splitlines()[:1]
    scored = gpt1("evaluate", "--checkpoint", str(run), "--nproc", "1")
    assert scored.code == 0, scored.err
    (again, *controls) = json.loads((run / "eval.json").read_text())
    assert again == dev
    assert gpt1("checkpoint", "export", str(run), "--to", "hf", "--out", "theirs").code == 0
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "theirs")
    spelled = transformers.AutoTokenizer.from_pretrained(folder / "theirs")
    found = [model.generate(**spelled(f"translate: {one}", return_tensors="pt")) for one in ("a dog plays", "two dogs")]
    assert [" ".join(spelled.decode(ids[0], skip_special_tokens=True).split()) for ids in found] == (
        answered.out.splitlines()
    )
    assert [one["task"] for one in controls] == ["control/source copied/table", "control/lead of the source/table"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["task.kind=span", "task.path=data/ask", "task.form=text"], "task.form=text answers a whole text"),
        (["task.kind=span", "task.path=data/ask", "task.metric=entity_f1"], "does not fit a task of kind span"),
        (["task.kind=span", "task.path=data/ask", "task.stride=0"], "task.stride=0 must be at least 1"),
        (["task.kind=span", "task.path=data/ask", "task.label_smoothing=0.1"], "the head of this task gives a span"),
        (["task.kind=tagging", "task.path=data/nothing"], "data/nothing: no such folder"),
        (["task.kind=tagging", "task.path=data/ask"], "has no column tokens"),
        (["task.kind=generation", "task.path=data/words"], "model.mask=bidirectional writes no text"),
        (["task.kind=generation", "task.path=data/words", "task.form=head"], "task.form=head writes no text"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str, folder: Path, gpt1: Gpt1) -> None:
    done = gpt1("finetune", START, "task.name=table", *arguments, "--dry-run")
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
