"""The search for a recipe trains every trial with the same FLOPs, keeps the best of each stage, and resumes."""

import csv
from pathlib import Path

import pytest

from gpt1_ds.architecture.count import training_flops_per_token
from gpt1_ds.config import load
from tools import recipe

FLOPS = 2e10


@pytest.mark.slow
def test_the_best_trial_of_a_stage_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    books = tmp_path / "books"
    books.mkdir()
    for number in range(60):
        (books / f"{number}.txt").write_text(f"chapter {number} of a book that says the same again and again\n" * 60)
    monkeypatch.setattr(recipe, "PRESET", "pretrain/tiny_cpu")
    monkeypatch.setattr(recipe, "VOCABULARIES", (300,))
    monkeypatch.setattr(
        recipe,
        "STAGES",
        {"rate": [{"optimizer.lr": 1e-9}, {"optimizer.lr": 1e-2}], "context": [{"model.context": 64}]},
    )
    monkeypatch.setattr(
        "sys.argv", ["recipe", str(books), str(tmp_path / "out"), "--flops", str(FLOPS), "--ranks", "1"]
    )
    recipe.main()
    with (tmp_path / "out/trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["stage"], row["optimizer.lr"], row["model.context"]) for row in rows] == [
        ("rate", "1e-09", "128"),
        ("rate", "0.01", "128"),
        ("context", "0.01", "64"),
    ]
    assert float(rows[1]["bits_per_byte"]) < float(rows[0]["bits_per_byte"])
    for row in rows:
        config = load(["pretrain/tiny_cpu"], ["data.path=x", f"model.context={row['model.context']}"])
        done = int(row["tokens"]) * training_flops_per_token(config, 300)
        batch = 8 * int(row["model.context"]) * training_flops_per_token(config, 300)
        assert abs(done - FLOPS) <= batch / 2

    with (tmp_path / "out/ngrams.csv").open(newline="") as file:
        counted = {row["order"]: float(row["bits_per_byte"]) for row in csv.DictReader(file)}
    assert 0 < counted["3"] < counted["2"] < counted["1"]
    assert (tmp_path / "out/trials.png").stat().st_size > 5000

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/runs").rglob("*")}
    recipe.main()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out/runs").rglob("*")} == before
