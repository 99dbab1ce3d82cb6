"""A plan is made of what is known, and says what a run would prepare first."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.cli import main
from gpt1_ds.config import load
from gpt1_ds.data import sources
from gpt1_ds.data.build import build
from gpt1_ds.data.sources import EMBEDDED_FOLDER, EMBEDDED_VOCAB_SIZE
from tests.helpers.scaling_trials import read


@pytest.mark.parametrize("words", [["plan"], ["status"], ["submit", "--dry-run"]], ids=lambda words: " ".join(words))
def test_nothing_is_written(words: list[str], in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, *options = words
    assert main(["scaling", name, "scaling/tiny_cpu", *options]) == 0
    told = capsys.readouterr()
    assert "l5w60-1M-seed1" in told.out
    assert f"{EMBEDDED_FOLDER}-512: not there yet: a run first makes it" in told.err
    assert not list(in_folder.iterdir())


def test_other_data_that_is_missing(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["scaling", "plan", "scaling/books", "data.path=nowhere"]
    assert main(words) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"not there yet: nowhere: not a dataset (there is no such folder in {in_folder}); "
        "make one with `gpt1-ds data build`",
        "gpt1-ds: model.vocab_size: the data are not there yet; build them, or say how large it is",
    ]
    assert main([*words, "model.vocab_size=1K"]) == 0
    assert "runs/books_ladder: 35 cells" in capsys.readouterr().out
    assert not list(in_folder.iterdir())


@pytest.mark.parametrize(("asked", "folder", "pieces"), [("512", "-512", 512), ("5000", "", EMBEDDED_VOCAB_SIZE)])
def test_a_model_of_fewer_pieces_gets_a_corpus_of_its_own(
    asked: str, folder: str, pieces: int, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr("gpt1_ds.data.tokenizers.train.train_tokenizer", lambda *words: made.append(words))
    monkeypatch.setattr(sources, "build", lambda *words, **more: made.append(words))
    config = sources.with_embedded_corpus(load([], ["data.path=python-docs", f"model.vocab_size={asked}"]))
    place, tokenizer = Path(f"data/python-docs{folder}"), Path(f"data/python-docs{folder}-tokenizer")
    assert [source.path for source in config.data.path] == [str(place)]
    assert made == [(["python-docs"], tokenizer, pieces), (["python-docs"], tokenizer, place)]


def test_the_vocabulary_is_that_of_the_run(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "--dry-run"]) == 0
    told = capsys.readouterr()
    assert f"vocabulary {EMBEDDED_VOCAB_SIZE}:" in told.out
    assert "not there yet" in told.err
    assert not list(in_folder.iterdir())


def test_data_without_held_out_text_judge_no_cell(
    tiny_data: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build([tiny_data.parent / "text"], tiny_data.parent / "tokenizer", in_folder / "whole", workers=1, validation=0)
    read(in_folder)
    assert main(["scaling", "run", "small.yaml", "data.path=whole", "run.dir=runs"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "gpt1-ds: data.path: whole has no held-out text, by whose loss a study judges its cells; build it with "
        "--validation above 0"
    )
    assert not Path("runs").exists()
