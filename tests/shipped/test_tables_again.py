"""Tables of the results, made again from nothing at a tenth of their size: the same rows, and scores that can be."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.helpers.shared_data import shared_data
from tools import csv_tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tools/results"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tenth of the novels."""
    folder = tmp_path_factory.mktemp("shelf")
    for book in sorted(shared_data("books").glob("*.txt"))[::10]:
        (folder / book.name).symlink_to(book)
    return folder


def again(script: str, shelf: Path, out: Path, *parts: str) -> Path:
    """The folder in which `script` has made everything again."""
    tasks = [str(shared_data("sts").parent)]
    command = [
        "bash",
        str(ROOT / "tools" / script),
        str(shelf),
        *(tasks if script != "books.sh" else []),
        str(out),
        *parts,
    ]
    subprocess.run(command, env={**os.environ, "REHEARSE": "10"}, check=True, stdout=subprocess.DEVNULL)
    return out.with_name(f"{out.name}-rehearsal")


def test_counting_words_and_a_small_gpt1(shelf: Path, tmp_path: Path) -> None:
    folder = again("books.sh", shelf, tmp_path / "books")
    counted = [row["loss"] for row in json.loads((folder / "data/books/ngrams.json").read_text())]
    (held_out,) = json.loads((folder / "runs/books_cpu/eval.json").read_text())
    assert counted == sorted(counted, reverse=True), "longer contexts are better"
    assert counted[-1] < held_out["metrics"]["loss"] < counted[0], "a tenth of the text: above letters, below trigrams"


def test_vectors_of_sentences(shelf: Path, tmp_path: Path) -> None:
    folder = again("sentences_books.sh", shelf, tmp_path / "sentences")
    rows = csv_tables.read(folder / "scores/results.csv")
    whole = csv_tables.read(RESULTS / "sentences_books/results.csv")
    assert {(row["row"], row["set"]) for row in rows} == {(row["row"], row["set"]) for row in whole}
    fixed = {(row["row"], row["set"]): row["spearman"] for row in whole if row["row"] == "GloVe, mean"}
    assert fixed == {(row["row"], row["set"]): row["spearman"] for row in rows if row["row"] == "GloVe, mean"}
