"""Predictions in windows: in order, as one by one, as the run's own; and lines as they arrive."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import gpt1_ds
from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.common.errors import ArgumentError, CheckpointError, DataError
from gpt1_ds.evaluation.generate import generate
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.evaluation.predict import WINDOW, Predictor, predict_lines, windows
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.launcher import launch
from gpt1_ds.tasks.encoding import encode
from gpt1_ds.tasks.lines import LONGEST, LineReader
from gpt1_ds.training.configuration import finetune_config
from tests.helpers.served import COLUMNS, SETTINGS, fields, fine_tune, labels, predictor_of, rows
from tools.small_tasks import make_task

SHAPES = sorted(COLUMNS)
Runs = Callable[[str], Path]


@pytest.mark.parametrize("shape", SHAPES)
def test_predictions_are_the_runs_own_and_those_of_each_alone(shape: str, fine_tuned: Runs) -> None:
    run = fine_tuned(shape)
    predictor, reader = predictor_of(run)
    examples = [reader.of_fields(fields(shape, row)) for row in rows(shape, 41)]
    together = predictor.scores(examples)
    alone = np.concatenate([predictor.scores([example]) for example in examples])
    np.testing.assert_allclose(together, alone, rtol=0, atol=2e-5)
    assert np.ptp(together, axis=0).max() > 0.1, "the examples do not all look the same"
    found = [line.split("\t")[0] for line in predictor.lines(examples, as_json=False)]
    if shape == "regression":
        np.testing.assert_allclose(np.array(found, dtype=float), np.array(labels(run), dtype=float), atol=6e-4)
    else:
        assert found == labels(run)
        assert len(set(found)) > 1


def test_python_says_what_lines_say(fine_tuned: Runs) -> None:
    """One example and many, as texts, tuples and mappings."""
    for shape in ("single", "regression", "choice"):
        loaded = gpt1_ds.load(fine_tuned(shape))
        predictor = Predictor(loaded)
        reader = LineReader(predictor.task, predictor.settings, "tsv")
        examples = [tuple(fields(shape, row)) for row in rows(shape, 5)]
        found = loaded.predict(examples)
        lines = predictor.lines([reader.of_fields(example) for example in examples], as_json=True)
        assert [json.loads(one.as_json()) for one in found] == [json.loads(line) for line in lines]
        one = loaded.predict(examples[0])
        assert one.label == found[0].label
        if shape == "single":
            assert loaded.predict(examples[0][0]).label == loaded.predict({"text": examples[0][0]}).label == one.label
            assert one.probabilities[str(one.label)] == max(one.probabilities.values())
        with pytest.raises(ArgumentError, match=r"^example=3: no text, tuple of texts or mapping"):
            loaded.predict([3])  # type: ignore[list-item]
        with pytest.raises(ArgumentError, match=r"^example=.*: 9 fields where .* expected: text"):
            loaded.predict(("a",) * 9)


def test_json_lines_say_what_the_scores_are(fine_tuned: Runs) -> None:
    for shape in ("single", "regression", "choice"):
        predictor, reader = predictor_of(fine_tuned(shape))
        example = reader.of_fields(fields(shape, rows(shape, 41)[0]))
        (line,), (plain,) = predictor.lines([example], as_json=True), predictor.lines([example], as_json=False)
        found, scores = json.loads(line), torch.from_numpy(predictor.scores([example]))[0]
        probabilities = scores.softmax(-1)
        if shape == "regression":
            assert list(found) == ["score", "scores"]
            assert found["score"] == pytest.approx(1 + float(probabilities @ torch.arange(6.0)) / 5 * 3, abs=2e-6)
            assert float(plain) == pytest.approx(found["score"], abs=2e-6)
            continue
        assert list(found) == ["label", "probability", "scores"]
        assert list(found["scores"]) == list(predictor.task.labels)
        np.testing.assert_allclose(list(found["scores"].values()), probabilities, atol=1e-6)
        assert found["label"] == predictor.task.labels[int(scores.argmax())]
        assert plain == f"{found['label']}\t{found['probability']:.6f}"


def test_longer_texts_are_cut_as_in_training(fine_tuned: Runs) -> None:
    loaded = load_checkpoint(fine_tuned("pair"))
    predictor = Predictor(loaded)
    reader = LineReader(predictor.task, predictor.settings, "tsv")
    text = "names of a list " * 40
    cut = loaded.tokenizer.decode(loaded.tokenizer.encode(text.strip())[:78])
    long, short = (reader.of_fields([first, "is returned"]) for first in (text, cut))
    encoded = encode(predictor.task, [long], loaded.tokenizer, 160)
    assert (int(encoded.lengths.max()), encoded.truncated) == (78 + 3 + len(loaded.tokenizer.encode("is returned")), 1)
    np.testing.assert_allclose(predictor.scores([long]), predictor.scores([short]), atol=1e-5)


@pytest.mark.parametrize("coefficient", [0, 0.5])
def test_a_fine_tuned_model_loads_and_still_writes_text(coefficient: float, tiny_data: Path, tmp_path: Path) -> None:
    words = [f"task.lm_coefficient={coefficient}", "train.steps=6"]
    run = fine_tune("single", tiny_data.parent / "tokenizer", tmp_path / "task", *words)
    loaded = load_checkpoint(run)
    assert loaded.folder.name == (run / "checkpoints" / "best").read_text().strip()
    assert isinstance(generate(loaded, "The", Sampling(tokens=8)), str)
    model, tokenizer = gpt1_ds.load(run)
    tokens = torch.tensor([[tokenizer.start_id], *([int(n)] for n in tokenizer.encode("a")), [tokenizer.extract_id]])
    assert model.scores(tokens, torch.tensor([len(tokens) - 1])).shape == (1, 3)


def test_a_damaged_description_of_the_head_is_refused(fine_tuned: Runs, tmp_path: Path) -> None:
    folder = find_checkpoint(fine_tuned("single"))
    for key, value in (("head", {"outputs": 3}), ("task", {"name": 3}), ("head", None), ("task", [])):
        for path in folder.rglob("*"):
            if path.is_file():
                (tmp_path / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path.relative_to(folder)).write_bytes(path.read_bytes())
        manifest.write(tmp_path, {**manifest.read(folder), key: value})
        with pytest.raises(CheckpointError, match=f"describes no {key} that"):
            load_checkpoint(tmp_path)
    manifest.write(tmp_path, {**manifest.read(folder), "head": {"outputs": 10**9, "sequences": 1}})
    with pytest.raises(CheckpointError, match=r"needs .* bytes of weights"):
        load_checkpoint(tmp_path)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            assert end == ends[1], "tests close the writing end only"


def test_lines_are_given_as_they_arrive(pipe: tuple[int, int]) -> None:
    read, write = pipe
    arriving = windows(read)
    os.write(write, b"one\ntwo\r\nthr")
    assert next(arriving) == [b"one", b"two\r"], "without waiting for more"
    os.write(write, b"ee\n\n")
    assert next(arriving) == [b"three", b""]
    os.write(write, b"x\n" * (WINDOW + 3))
    assert [len(next(arriving)) for _ in range(2)] == [WINDOW, 3]
    os.write(write, b"last")
    os.close(write)
    assert list(arriving) == [[b"last"]]


def test_a_file_gives_whole_windows(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(30_000)))
    with path.open("rb") as stream:
        found = list(windows(stream.fileno()))
    assert b"".join(line + b"\n" for window in found for line in window) == path.read_bytes()
    assert {len(window) for window in found[:-1]} == {WINDOW}


def test_a_line_without_end_is_not_held(tmp_path: Path) -> None:
    with open("/dev/zero", "rb") as stream:
        (window,) = windows(stream.fileno())
    assert LONGEST < len(window[0]) < 2 * LONGEST


def test_what_precedes_a_line_that_is_too_long_is_given_first(fine_tuned: Runs) -> None:
    loaded = load_checkpoint(fine_tuned("pair"))
    assert loaded.config.task is not None
    loaded = replace(loaded, config=replace(loaded.config, task=replace(loaded.config.task, too_long="raise")))
    predictor = Predictor(loaded)
    reader = LineReader(predictor.task, predictor.settings, "tsv")
    long = b"names of a list " * 40 + b"\tis returned"
    found = predict_lines(predictor, reader, "x.tsv", [[b"a\tb"], [b"c\td", long, b"e\tf"]], as_json=False)
    assert [len(next(found)) for _ in range(2)] == [1, 1]
    line = r"x.tsv line 3: is longer than 160 tokens, and the model cuts nothing \(task.too_long=raise\); shorten it$"
    with pytest.raises(DataError, match=line):
        next(found)


def test_what_is_no_answer_is_the_runs_own_choice(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the run's dev at every step, whatever was evaluated later; a copy of a checkpoint says that it has none."""
    place = [f"task.tokenizer={tiny_data.parent / 'tokenizer'}", f"run.dir={tmp_path}", "run.name=r"]
    words = [*make_task(tmp_path / "ask", "span"), *place, *SETTINGS, "train.steps=6"]
    assert launch.launch("gpt1_ds.training.finetuning:finetune", (finetune_config([], words),), 1) == 0
    run = tmp_path / "r"
    folder = find_checkpoint(run)
    (own,) = json.loads((run / "eval.json").read_text())
    threshold = own["metrics"]["null_threshold"]
    other = {**own, "data": "other", "metrics": {"null_threshold": threshold + 9}}
    question = json.loads((tmp_path / "ask" / "dev.jsonl").read_text().splitlines()[0])

    def said(path: Path) -> float:
        predictor, reader = predictor_of(path)
        predictor.predict([reader.of_fields([question["question"], question["context"]])])
        return predictor._threshold

    for entries in ([own, other], [other], []):
        (run / "eval.json").write_text(json.dumps(entries))
        assert said(folder) == threshold
    (run / "metrics.jsonl").unlink()
    (run / "eval.json").write_text(json.dumps([own, other]))
    assert said(folder) == threshold
    assert "null_threshold" not in capsys.readouterr().err
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    assert said(copy) == 0.0
    error = capsys.readouterr().err
    assert error.startswith(f"{copy}: no run beside it says its null_threshold: 0.0 is assumed; ")
    assert (error.count("\n"), error.endswith("--checkpoint runs/NAME\n")) == (1, True)
