"""`predict` and `evaluate` of a fine-tuned run as a person uses them: words, files and pipes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.cli import main
from gpt1_ds.tracking.record import of_models
from tests.helpers.foreign import make_checkpoint
from tests.helpers.served import fields, labels, predictor_of, rows

ROOT = Path(__file__).parents[2]
Runs = Callable[[str], Path]


def command(run: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "gpt1_ds", "predict", "--checkpoint", str(run), *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def predict(run: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(run, *arguments), input=text, env=environment(), capture_output=True, text=True, timeout=120
    )


def peak(run: Path, lines: Path, out: Path) -> int:
    """KiB of resident memory that a process reading these lines from a pipe has at most."""
    with out.open("wb") as output, subprocess.Popen(["cat", str(lines)], stdout=subprocess.PIPE) as source:
        process = subprocess.Popen(command(run), stdin=source.stdout, stdout=output, env=environment())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss


@pytest.mark.slow
def test_ten_thousand_lines_of_a_pipe(fine_tuned: Runs, tmp_path: Path) -> None:
    run = fine_tuned("single")
    texts = [str(row["a"]) for row in rows("single", 10_000)]
    many, few = tmp_path / "many", tmp_path / "few"
    many.write_text("\n".join(texts))
    few.write_text("\n".join(texts[:1000]))
    memory = [peak(run, path, path.with_suffix(".out")) for path in (few, many)]
    assert memory[1] < memory[0] + 20 * 1024, f"{memory} KiB: grows with the number of lines"
    found = [line.split("\t") for line in many.with_suffix(".out").read_text().splitlines()]
    assert len(found) == len(texts)
    assert many.with_suffix(".out").read_bytes().startswith(few.with_suffix(".out").read_bytes()[:-20])
    predictor, reader = predictor_of(run, "text")
    for number in range(0, len(texts), 97):
        (alone,) = predictor.lines([reader.of_fields([texts[number]])], as_json=False)
        assert found[number][0] == alone.split("\t")[0], number
        assert float(found[number][1]) == pytest.approx(float(alone.split("\t")[1]), abs=2e-6)
    assert len({label for label, _ in found}) == 3


def test_dev_is_labelled_as_by_the_run(fine_tuned: Runs, in_folder: Path, capsysbinary: pytest.CaptureFixture) -> None:
    for shape in ("single", "question"):
        run, dev = fine_tuned(shape), rows(shape, 41)
        Path("dev.tsv").write_text("".join("\t".join(fields(shape, row)) + "\r\n" for row in dev))
        assert main(["predict", "--checkpoint", str(run), "--input", "dev.tsv", "--output", "found.tsv"]) == 0
        assert [line.split("\t")[0] for line in Path("found.tsv").read_text().splitlines()] == labels(run)
        objects = [
            {"text": row["a"], "text2": row["b"], **({"choices": row["c"]} if "c" in row else {})} for row in dev
        ]
        Path("dev.jsonl").write_text("".join(json.dumps(one) + "\n" for one in objects))
        assert main(["predict", "--checkpoint", str(run), "--input", "dev.jsonl"]) == 0
        out, err = capsysbinary.readouterr()
        assert not err, "a person who redirects is told nothing"
        assert [json.loads(line)["label"] for line in out.splitlines()] == labels(run)


def test_one_example_in_words(fine_tuned: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["predict", "--checkpoint", str(fine_tuned("pair"))]
    assert main([*arguments, "a list", "is\treturned", "--scores"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["scores"].values()) == pytest.approx(1, abs=1e-5)
    assert main([*arguments, "--", "- a", "b"]) == 0
    label, probability = capsys.readouterr().out.rstrip("\n").split("\t")
    assert label in found["scores"]
    assert 1 / 3 <= float(probability) <= 1
    assert main(["predict", "--checkpoint", str(fine_tuned("regression")), "a list", "names"]) == 0
    assert -0.01 <= float(capsys.readouterr().out) <= 4.01


def test_texts_that_are_cut_are_counted(fine_tuned: Runs, in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were cut in silence."""
    arguments = ["predict", "--checkpoint", str(fine_tuned("single"))]
    Path("lines").write_text("a list\n" + "word " * 500 + "\n" + "two " * 500 + "\n")
    assert main([*arguments, "--input", "lines"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert re.search(r"^2 of 3 examples are longer than \d+ tokens and cut$", err, re.MULTILINE)


@pytest.mark.slow
def test_a_slow_pipe_is_answered_at_once(fine_tuned: Runs) -> None:
    process = subprocess.Popen(
        command(fine_tuned("single")), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"the first\n")
    process.stdin.flush()
    process.stdout.readline()
    began = time.monotonic()
    for _ in range(3):
        process.stdin.write(b"another one\n")
        process.stdin.flush()
        assert process.stdout.readline().count(b"\t") == 1
    assert time.monotonic() - began < 20, "not when 256 lines are there"
    rest, _ = process.communicate(b"and", timeout=60)
    assert rest.count(b"\n") == 1
    assert process.returncode == 0


@pytest.mark.slow
def test_a_bad_line_ends_it_after_those_before(fine_tuned: Runs, tmp_path: Path) -> None:
    good = "a\tb\n" * 300
    done = predict(fine_tuned("pair"), good + "no tab\n" + good, "--output", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr == "gpt1-ds: standard input line 301: 1 field where 2 are expected: text, text2\n"
    assert (tmp_path / "out").read_text().count("\n") == 300


def test_an_older_file_stays_where_the_first_line_is_refused(fine_tuned: Runs, in_folder: Path) -> None:
    Path("bad.tsv").write_text("no tab\n")
    Path("found.tsv").write_text("of a longer run\n")
    arguments = ["predict", "--checkpoint", str(fine_tuned("pair")), "--input", "bad.tsv", "--output", "found.tsv"]
    assert main(arguments) == 2
    assert Path("found.tsv").read_text() == "of a longer run\n"


@pytest.mark.parametrize(
    ("text", "code", "answers", "said"),
    [("one\n\ntwo\n", 2, 1, "gpt1-ds: standard input line 2: is empty\n"), ("", 0, 0, "")],
    ids=["an empty line", "nothing"],
)
def test_what_standard_input_may_hold(
    text: str,
    code: int,
    answers: int,
    said: str,
    fine_tuned: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "lines").write_text(text)
    run = fine_tuned("single")
    capfd.readouterr()
    with open(tmp_path / "lines") as lines:
        monkeypatch.setattr(sys, "stdin", lines)
        assert main(["predict", "--checkpoint", str(run)]) == code
    out, err = capfd.readouterr()
    assert (out.count("\n"), err) == (answers, said)


def test_inspect_says_what_it_was_fine_tuned_on(fine_tuned: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "inspect", str(fine_tuned("choice"))]) == 0
    assert "fine-tuned on table, choice\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_closed_pipe_is_left_quietly(fine_tuned: Runs, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a list of names\n" * 20_000)
    arguments = command(fine_tuned("single"), "--input", str(tmp_path / "lines"))
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_what_people_get_wrong(
    fine_tuned: Runs, tiny_data: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    single, pair = str(fine_tuned("single")), str(fine_tuned("pair"))
    make_checkpoint(in_folder / "lm", tiny_data.parent / "tokenizer")
    Path("x.txt").write_text("a\n")
    Path("x.csv").write_text("a\n")
    for arguments, says in (
        ([pair, "a"], "TEXT: 1 field where 2 are expected: text, text2"),
        ([single, "two", "words"], "TEXT: 2 fields where 1 is expected: text (each in quotes)"),
        ([single, ""], "TEXT: text is missing"),
        ([single, "a", "--input", "x.txt"], "TEXT is one example"),
        ([single, "--input", "nowhere"], "nowhere: no such file"),
        ([single, "--input", "lm"], "lm: is a folder; --input names a file with an example a line"),
        ([single, "--input", "x.csv"], "x.csv: CSV is not read here"),
        ([single, "--input", "x.txt", "--output", "x.txt"], "x.txt: is what is read, too"),
        ([single, "--input", "x.txt", "--output", "no/where"], "no/where: no file can be there"),
        ([pair, "--input", "x.txt", "--format", "text"], "reads text, text2; use --format tsv or jsonl"),
        (["lm", "a"], "was not fine-tuned on a task"),
        (["elsewhere", "a"], "elsewhere: no such folder"),
    ):
        assert main(["predict", "--checkpoint", *arguments]) == 2, arguments
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error
        assert says in error
    assert Path("x.txt").read_text() == "a\n"
    for out in ("no/where.json", "lm"):
        assert main(["evaluate", "--checkpoint", single, "--out", out]) == 2
        assert capsys.readouterr().err == f"gpt1-ds: {out}: no file can be there; choose another --out\n"


def test_answers_are_not_added_to_what_is_read(
    fine_tuned: Runs, in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("x.txt").write_text("a\nb\n")
    terminal = os.dup(1)
    with open("x.txt", "ab") as file:
        os.dup2(file.fileno(), 1)
    try:
        code = main(["predict", "--checkpoint", str(fine_tuned("single")), "--input", "x.txt"])
    finally:
        os.dup2(terminal, 1)
        os.close(terminal)
    assert (code, Path("x.txt").read_text()) == (2, "a\nb\n"), "a longer file would grow for ever"
    assert capfd.readouterr().err == "gpt1-ds: standard output: is what is read, too; choose another file\n"


@pytest.mark.parametrize("shape", ["single", "regression", "choice"])
def test_evaluate_repeats_the_runs_own_scores_on_every_layout(shape: str, fine_tuned: Runs, in_folder: Path) -> None:
    run = fine_tuned(shape)
    (own,) = json.loads((run / "eval.json").read_text())
    assert own["split"] == "dev"
    for layout in (["--nproc", "2"], ["--nproc", "2", "parallel.tensor=2"], ["--nproc", "2", "parallel.pipeline=2"]):
        assert main(["evaluate", "--checkpoint", str(run), "--out", "e.json", *layout]) == 0
        (found,) = of_models(json.loads(Path("e.json").read_text()))
        assert (found["task"], found["split"], found["step"]) == (own["task"], "dev", own["step"])
        np.testing.assert_allclose(list(found["metrics"].values()), list(own["metrics"].values()), atol=1e-5)
        assert list(found["metrics"]) == list(own["metrics"])
        assert found["loss"] == pytest.approx(own["loss"], rel=1e-5)


def test_evaluate_takes_the_runs_eval_json_and_data_that_moved(fine_tuned: Runs, in_folder: Path) -> None:
    copy = Path(shutil.copytree(fine_tuned("single"), in_folder / "r"))
    before = json.loads((copy / "eval.json").read_text())
    shutil.copytree(fine_tuned("single").parents[1], in_folder / "data", ignore=shutil.ignore_patterns("runs"))
    assert main(["evaluate", "--checkpoint", str(copy), "task.path=data", "--nproc", "1"]) == 0
    after = json.loads((copy / "eval.json").read_text())
    assert [entry["metrics"] for entry in of_models(after)] == [entry["metrics"] for entry in before]
    controls = {entry["task"]: entry for entry in after if entry not in of_models(after)}
    assert set(controls) == {"control/majority/table", "control/bag of words/table"}
    assert all((entry["split"], entry["step"]) == ("dev", 0) for entry in controls.values())
    rights = [row["x"] for row in rows("single", 41)]
    trained = Counter(row["x"] for row in rows("single", 96))
    most = max(sorted(trained), key=trained.__getitem__)
    wanted = {"accuracy": pytest.approx(rights.count(most) / 41)}
    assert controls["control/majority/table"]["metrics"].items() >= wanted.items()
    assert controls["control/bag of words/table"]["metrics"]["accuracy"] > 0.9, "the words tell the class"
    assert main(["report", str(copy)]) == 0
    assert "control/bag of words/table" in (copy / "report.html").read_text()


@pytest.mark.slow
def test_evaluate_says_a_line_a_split(fine_tuned: Runs, program: Callable[..., subprocess.CompletedProcess]) -> None:
    run = fine_tuned("single")
    done = program("evaluate", "--checkpoint", str(run), "--nproc", "2", "--out", "e.json", "optimizer.name=adam2018")
    assert done.returncode == 0, done.stderr
    unread, own, majority, bag = done.stderr.splitlines()
    assert unread == "optimizer.name=adam2018 changes nothing: evaluate does not train"
    assert own.startswith(f"{run}/checkpoints/step-")
    assert ": table dev: accuracy " in own
    assert majority.startswith("control/majority/table dev: accuracy ")
    assert bag.startswith("control/bag of words/table dev: accuracy ")


def test_evaluate_on_another_task_is_refused(
    fine_tuned: Runs, in_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", "--checkpoint", str(fine_tuned("single")), "--nproc", "1", "task.columns.text2=b"]
    files = f"task.path={fine_tuned('pair').parents[1]}"
    assert main([*arguments, files]) == 2
    assert "was fine-tuned on table" in capfd.readouterr().err
