"""`evaluate` with probes, as a person uses it: one checkpoint, all of a run, again, and what people get wrong."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.cli import main
from gpt1_ds.config import ModelConfig
from gpt1_ds.launcher import launch
from tests.helpers.foreign import make_checkpoint
from tests.helpers.theirs import BERT
from tests.unit.tasks.test_book_probes import write_book
from tools.runs import configuration

TWO = ModelConfig(kind="encoder_decoder", norm="pre", layers=1, width=32, heads=2, context=64, positions="relative")
TEXT_MODELS = {"t5": TWO, "prefix": replace(TWO, kind="gpt", mask="prefix", positions="learned")}
SCHEMA = "The cup fell on Bob since [MASK] is frail .\n[MASK]\nThe cup, Bob\nThe cup\n\n"
ABOVE = {"above_control", "above_control_low", "above_control_high"}
KEYS = {"accuracy", "low", "high", "control", "control_low", "control_high", *ABOVE, "chance", "examples"}
Gpt1 = Callable[..., tuple[int, list[str]]]


@pytest.fixture(scope="module")
def finished(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of two tasks and a run of 12 steps, saved at 5, 10 and 12."""
    folder = tmp_path_factory.mktemp("zeroshot")
    arguments = [f"data.path={tiny_data}", f"run.dir={folder}", "run.name=r", "train.steps=12"]
    assert launch.launch("gpt1_ds.training.pretraining:pretrain", (configuration(arguments),), 1) == 0
    rows = "".join(f"x\t{n % 2}\t\t{'the text is good' if n % 2 else 'text the the is'} {n}\n" for n in range(30))
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text(rows)
    (folder / "pdp.txt").write_text(SCHEMA * 9)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def gpt1(folder: Path, capfd: pytest.CaptureFixture[str]) -> Gpt1:
    """`evaluate` in this process, ranks from the warm fork server; its exit code and this process's lines."""

    def run(*arguments: str, probes: str = "[{name: cola, path: .}, {name: pdp, path: .}]") -> tuple[int, list[str]]:
        capfd.readouterr()
        try:
            code = main(["evaluate", "--nproc", "1", *arguments, f"probes={probes}"])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.err.splitlines()

    return run


def results(path: Path = Path("r/eval.json")) -> dict[tuple[str, int], dict[str, Any]]:
    entries = json.loads(path.read_text())
    found = {(entry["task"], entry["step"]): entry["metrics"] for entry in entries}
    assert len(found) == len(entries)
    return found


def mark() -> None:
    """Make what is there now known again."""
    entries = json.loads(Path("r/eval.json").read_text())
    for entry in entries:
        entry["metrics"]["marked"] = 1
    Path("r/eval.json").write_text(json.dumps(entries))


def new() -> set[tuple[str, int]]:
    """What was scored since."""
    return {key for key, metrics in results().items() if "marked" not in metrics}


def test_one_checkpoint_and_its_held_out_loss(gpt1: Gpt1) -> None:
    assert gpt1("--checkpoint", "r") == (0, [])
    found = results()
    assert set(found) == {("zero-shot/cola", 12), ("zero-shot/pdp", 12), ("held-out", 12)}
    cola = found["zero-shot/cola", 12]
    assert (cola["examples"], cola["fitted"], cola["chance"]) == (30, 30, 0)
    assert cola["matthews"] > 0.3, "dev is train here, and the good sentences say one thing"
    assert cola["auc_low"] < cola["auc"] < cola["auc_high"]
    assert {"control", "auc_control"} <= cola.keys()
    assert found["zero-shot/pdp", 12]["accuracy"] in (0, 1), "nine times the same"
    mark()
    assert gpt1("--checkpoint", "r")[0] == 0
    assert new() == set(found), "asked again it is scored again"


def test_two_ranks_say_the_same(gpt1: Gpt1) -> None:
    for ranks in ("1", "2"):
        assert gpt1("--checkpoint", "r", "--out", f"{ranks}.json", "--nproc", ranks)[0] == 0
    one, two = results(Path("1.json")), results(Path("2.json"))
    for key, metrics in one.items():
        assert two[key] == pytest.approx(metrics, rel=1e-5)


def test_a_masked_model_and_minimal_pairs(gpt1: Gpt1, folder: Path, sentence_data: Path) -> None:
    """Every token masked in turn; pairs of two phenomena; two ranks say the same."""
    make_checkpoint(folder / "bert", sentence_data.parent / "tokenizer", BERT)
    pair = {"sentence_good": "The text is good.", "sentence_bad": "The text are good.", "UID": "p"}
    lines = [json.dumps({**pair, "linguistics_term": term}) for term in ("binding", "binding", "ellipsis")]
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    probes = "[{name: cola, path: .}, {name: pdp, path: .}, {name: blimp, path: pairs.jsonl}]"
    for ranks in ("1", "2"):
        arguments = ("--checkpoint", "bert", "--out", f"{ranks}.json", "--nproc", ranks, "data.path=gone")
        assert gpt1(*arguments, probes=probes)[0] == 0
    one, two = results(Path("1.json")), results(Path("2.json"))
    assert set(one) == {(f"zero-shot/{name}", 0) for name in ("cola", "pdp", "blimp")}
    for key, metrics in one.items():
        assert two[key] == pytest.approx(metrics, rel=1e-5)
    pairs = one["zero-shot/blimp", 0]
    assert pairs.keys() == {*KEYS, "paradigms", "binding", "ellipsis"}
    assert pairs["control"] in (0, 1)
    assert pairs["paradigms"] == 1
    assert pairs["accuracy"] == pairs["binding"] == pairs["ellipsis"] in (0, 1), "three times the same pair"


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_models_that_see_their_source(name: str, gpt1: Gpt1, folder: Path, span_data: Path) -> None:
    """The paper's probes and a template; a title keeps two of them apart; two ranks say the same."""
    make_checkpoint(folder / "t5", span_data.parent / "tokenizer", TEXT_MODELS[name])
    template = "{name: cola, path: ., template: 'Is it good? {text} It is', answers: [bad, quite good]}"
    titled = template.replace("name: cola", "name: cola, title: other").replace("quite good", "good")
    write_book(folder / "book.txt")
    books = "{name: next_sentence, path: book.txt, limit: 20}"
    probes = f"[{{name: cola, path: .}}, {{name: pdp, path: .}}, {template}, {titled}, {books}]"
    for ranks in ("1", "2"):
        arguments = ("--checkpoint", "t5", "--out", f"{ranks}.json", "--nproc", ranks, "data.path=gone")
        assert gpt1(*arguments, probes=probes)[0] == 0
    one, two = results(Path("1.json")), results(Path("2.json"))
    assert set(one) == {(f"zero-shot/{name}", 0) for name in ("cola", "pdp", "cola-template", "other", "next_sentence")}
    for key, metrics in one.items():
        assert two[key] == pytest.approx(metrics, rel=1e-5)
    assert one["zero-shot/other", 0].keys() == KEYS
    assert one["zero-shot/other", 0]["control"] == 0.5, "one answer whatever the text is, right for every second one"
    assert (one["zero-shot/other", 0]["examples"], one["zero-shot/other", 0]["chance"]) == (30, 0.5)


@pytest.mark.parametrize(
    ("probe", "says"),
    [
        ("{name: stsb, path: ., template: '{text}', answers: [a, b]}", "name=stsb has no classes"),
        ("{name: cola, path: ., template: '{text}', answers: [a, b, c]}", "must be one for each of 0, 1"),
    ],
)
def test_a_template_that_does_not_fit(probe: str, says: str, gpt1: Gpt1) -> None:
    code, lines = gpt1("--checkpoint", "r", probes=f"[{probe}]")
    assert code == 2
    assert len(lines) == 1
    assert says in lines[0]


def test_every_checkpoint_once(gpt1: Gpt1, folder: Path) -> None:
    assert gpt1("--checkpoint", "r", "--every", "--points", "2", probes="[{name: cola, path: .}]") == (0, [])
    assert set(results()) == {(task, step) for task in ("zero-shot/cola", "held-out") for step in (5, 12)}
    mark()
    assert gpt1("--checkpoint", "r", "--every")[0] == 0
    assert new() == {("zero-shot/cola", 10), ("held-out", 10), *(("zero-shot/pdp", step) for step in (5, 10, 12))}
    mark()
    assert gpt1("--checkpoint", "r", "--every")[0] == 0
    assert new() == set(), "nothing is left to do"
    entries = json.loads(Path("r/eval.json").read_text())
    del next(entry for entry in entries if (entry["task"], entry["step"]) == ("zero-shot/pdp", 5))["metrics"]["control"]
    Path("r/eval.json").write_text(json.dumps(entries))
    assert gpt1("--checkpoint", "r", "--every")[0] == 0
    assert new() == {("zero-shot/pdp", 5)}, "an older version left no control"
    mark()
    assert (
        gpt1("--checkpoint", "r", "--every", probes="[{name: cola, path: ., limit: 9}, {name: pdp, path: .}]")[0] == 0
    )
    assert new() == {("zero-shot/cola", step) for step in (5, 10, 12)}, "other examples are other scores"
    assert results()["zero-shot/cola", 5]["examples"] == 9
    assert main(["report", str(folder / "r")]) == 0
    assert (folder / "r" / "report.html").read_text().count("<svg") == 5


def test_probes_need_no_training_data(gpt1: Gpt1) -> None:
    code, lines = gpt1("--checkpoint", "r", "data.path=gone", probes="[{name: pdp, path: pdp.txt}]")
    assert code == 0
    assert lines[0].startswith("no held-out loss: gone: not a dataset")
    assert set(results()) == {("zero-shot/pdp", 12)}


@pytest.mark.parametrize(
    ("arguments", "probes", "says"),
    [
        (["--checkpoint", "r"], "[{name: cola, path: gone}]", "gone: no such folder; give the one that"),
        (["--checkpoint", "r"], "[{name: copa, path: .}]", ".: holds none of val.jsonl; or dev.jsonl; or train.jsonl"),
        (["--checkpoint", "r"], "[{name: colla, path: .}]", "probes: name=colla is no zero-shot probe; choose cola"),
        (["--checkpoint", "gone"], "[]", "gone: no such folder; name a run folder"),
        (["--checkpoint", "gone", "--every"], "[]", "gone: no such folder"),
        (["--checkpoint", "r/checkpoints/step-00000010", "--every"], "[]", "--every: r/checkpoints/step"),
        (["--checkpoint", "r", "--every", "--points", "0"], "[]", "--points=0: at least 1 checkpoint is needed"),
        (["--checkpoint", "r", "--points", "2"], "[]", "--points=2: thins what --every takes; add --every"),
        (["--checkpoint", "r", "--every", "--out", "dev.tsv"], "[{name: pdp, path: .}]", "dev.tsv: not a list"),
        (["--checkpoint", "r", "--out", "dev.tsv"], "[{name: pdp, path: .}]", "dev.tsv: not a list of results"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)  # fmt: skip
def test_mistakes(gpt1: Gpt1, arguments: list[str], probes: str, says: str) -> None:
    code, lines = gpt1(*arguments, probes=probes)
    assert code == 2
    assert len(lines) == 1, lines
    assert says in lines[0]


def test_all_folders_that_are_missing_are_named(gpt1: Gpt1) -> None:
    code, lines = gpt1(
        "--checkpoint", "r", probes="[{name: cola, path: a}, {name: pdp, path: .}, {name: sst2, path: b}]"
    )
    assert code == 2
    assert [line.split(":")[1] for line in lines] == [" a", " b"]


def test_a_model_that_was_lost(gpt1: Gpt1, folder: Path) -> None:
    state = next((folder / "r" / "checkpoints" / "step-00000012" / "state").glob("*.safetensors"))
    os.truncate(state, 100)
    code, lines = gpt1("--checkpoint", "r", "data.path=gone")
    assert code == 2
    assert "damaged: 100 bytes" in lines[-1]
