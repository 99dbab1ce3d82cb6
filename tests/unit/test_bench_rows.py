"""The performance table's turns, ratios and files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tools.bench import table
from tools.bench.rows import Ratio, Row, fastest, rate, ratio, take_turns

MACHINE = {
    **{"device": None, "processor": "a processor", "cores": 2, "matrix_units": "avx2", "date": "2026-01-01"},
    **{"torch": "2", "deepspeed": "0", "megatron-core": "0", "transformers": None, "quick": False},
}
ROW = Row(
    number=3,
    title="a race",
    unit="ms",
    series={"hare": [1.0, 4.0, 2.0], "tortoise": [3.0, 3.0, 3.0]},
    ratios=[
        Ratio("hare / tortoise", [0.33, 1.33, 0.67], 0.5, at_least=False),
        Ratio("tortoise / hare", [3.0, 0.75, 1.5], 1.5),
        Ratio("nobody asked", [1.0]),
    ],
    configuration={"metres": 100},
)


def test_contenders_take_turns_and_the_warm_up_is_left_out() -> None:
    order: list[str] = []

    def contender(name: str, figures: list[float]):  # type: ignore[no-untyped-def]
        def work() -> float:
            order.append(name)
            return figures.pop(0)

        return work

    series = take_turns({"a": contender("a", [9.0, 1.0, 2.0]), "b": contender("b", [9.0, 3.0, 4.0])}, rounds=2)
    assert order == ["a", "b"] * 3
    assert series == {"a": [1.0, 2.0], "b": [3.0, 4.0]}


def test_ratios_are_of_one_round() -> None:
    series = {"a": [1.0, 10.0], "b": [2.0, 5.0], "c": [1.0, 1.0, 30.0]}
    assert ratio(series, "a", "b") == [0.5, 2.0]
    assert fastest(series, ["a", "c"]) == "a", "by the median: c's best round counts once"


def test_a_rate_counts_every_repeat() -> None:
    done = []
    assert rate(lambda: done.append(1), 10.0, "cpu", repeats=3)() > 0
    assert len(done) == 3


def test_targets_are_reached_from_their_side() -> None:
    assert [one.reached for one in ROW.ratios] == [False, True, None]
    assert replace(ROW.ratios[0], target=0.67).reached


def test_a_table_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "cpu.json"
    assert table.load(path) == ({}, [])
    other = replace(ROW, number=1, title="first")
    table.save(path, MACHINE, [ROW, other])
    assert table.load(path) == (MACHINE, [other, ROW])
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    text = path.with_suffix(".md").read_text()
    assert text.index("| 1 first |") < text.index("| 3 a race |")
    assert "| 3 a race | hare 2 ms; tortoise 3 ms |" in text
    assert "| 3 a race | hare / tortoise | 0.67 (0.33 to 1.33) | <= 0.5: falls short |" in text
    assert "|  | tortoise / hare | 1.5 (0.75 to 3) | >= 1.5: reached |" in text
    assert "|  | nobody asked | 1 |  |" in text
    assert "tiny sizes" not in text
    assert "tiny sizes" in table.markdown({**MACHINE, "quick": True}, [ROW])


def test_the_guide_shows_the_results_that_are_kept() -> None:
    root = Path(__file__).parents[2]
    machine, rows = table.load(root / "tools" / "bench" / "results" / "cpu.json")
    assert rows
    assert not machine["quick"]
    assert table.brief(machine, rows, judged=True) in (root / "gpt1_ds" / "guides" / "performance.md").read_text()
