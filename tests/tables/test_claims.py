"""Two tables of the claims, made again from nothing by the command that made them: with a tenth of the novels, a
two-hundredth of the tokens and of the examples. Their scores say nothing; every row, control and comparison is there.
"""

import csv
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.shared_data import shared_data, small_tasks

ROOT = Path(__file__).parents[2]
CONTROLS = {"majority", "bag of words"}
PAIRS = {*CONTROLS, "second text alone", "word overlap", "words and overlap"}


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs, after `tools/claims.sh` at a two-hundredth."""
    folder = tmp_path_factory.mktemp("claims")
    books = folder / "books"
    books.mkdir()
    for novel in sorted(shared_data("books").glob("*.txt"))[::10]:
        (books / novel.name).symlink_to(novel)
    tables = ("layers", "lstm")
    tasks = small_tasks(folder / "tasks")
    command = ["bash", str(ROOT / "tools/claims.sh"), str(books), str(tasks), str(folder / "out"), *tables]
    ran = subprocess.run(command, env={**os.environ, "REHEARSE": "200"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return folder / "out-rehearsal" / "runs"


def rows_of(claims: Path, study: str) -> dict[tuple[str, str], list[dict[str, str]]]:
    """The reported scores of each row and column."""
    with (claims / f"{study}-rehearsal" / "results.csv").open(newline="") as file:
        found: dict[tuple[str, str], list[dict[str, str]]] = {}
        for row in csv.DictReader(file):
            if row["metric"] == "accuracy":
                found.setdefault((row["variant"], row["task"]), []).append(row)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "variants", "columns"),
    [
        (
            "claims_layers",
            {"GPT-1", "shuffled words", "nothing", "embeddings", "1 layer", "2 layers", "3 layers"},
            {"sst2": 1, "snli": 1},
        ),
        ("claims_lstm", {"GPT-1", "LSTM"}, {"sst2": 1, "qnli": 1, "mnli": 1, "snli": 1}),
    ],
)
def test_a_table_is_made_again(claims: Path, study: str, variants: set[str], columns: dict[str, int]) -> None:
    found = rows_of(claims, study)
    assert {variant for variant, _ in found} == variants | PAIRS
    for variant in variants | CONTROLS:
        tasks = [task.partition("-")[0] for name, task in found if name == variant]
        assert Counter(tasks) == columns, variant
    for rows in found.values():
        assert all(0 <= float(row["value"]) <= 1 for row in rows)
    comparisons = (claims / f"{study}-rehearsal" / "comparisons.csv").read_text()
    assert comparisons.count("\n") > 1
