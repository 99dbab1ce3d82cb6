"""What the fault campaign plans, counts and keeps (its kills are tests/faults/test_kills.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.fault_campaign import CAMPAIGN, KILLS_PER_RUN, LAYOUTS, layout_of
from tools.faults.attempt import AIMS, IN_SAVES, PHASES, SECONDS_INTO
from tools.faults.ledger import Finished, Kill, Ledger, shortfalls, table

ONE = Kill(0, "one", 1, "launcher", "save", "save", 3)


def test_a_hundred_kills_are_spread_over_every_layout() -> None:
    runs = [layout_of(run, 977, CAMPAIGN)[0] for run in range(100 // KILLS_PER_RUN)]
    assert len(CAMPAIGN) == len(set(runs[: len(CAMPAIGN)])) == 8
    assert min(runs.count(layout) for layout in CAMPAIGN) >= 4
    assert runs == [layout_of(run, 977, CAMPAIGN)[0] for run in range(len(runs))], "whenever it is asked"
    words = [" ".join(words) for _, words in CAMPAIGN.values()]
    assert len(set(words)) == 7, "one process and two have no words"
    assert {"parallel.zero=0", "parallel.zero=2", "parallel.zero=3", "parallel.tensor=2 parallel.pipeline=2"} <= {
        *words
    }
    assert len(LAYOUTS) == 5, "what the tests pay for"


def test_half_of_the_kills_are_aimed_at_saves() -> None:
    assert sum(AIMS[aim] for aim in IN_SAVES) / sum(AIMS.values()) >= 0.5
    assert set(AIMS) == set(SECONDS_INTO) == {*PHASES} - {"end"}


def test_an_interrupted_campaign_is_continued(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "new" / "kills.jsonl")
    ledger.add(ONE)
    ledger.add(Finished(0, "one", "on"))
    with open(ledger.path, "a") as file:
        file.write('{"kill": {"run": 1, "lay')
    again = Ledger(ledger.path)
    assert (again.kills, again.finished) == ([ONE], [Finished(0, "one", "on")])
    again.add(Kill(1, "tp2", 2, "one rank", "step", "step", 0))
    last = Ledger(ledger.path)
    assert [last.kills_of(run) for run in (0, 1, 2)] == [1, 1, 0]


def test_the_table_and_what_it_lacks(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "kills.jsonl")
    for kill in (ONE, ONE, Kill(1, "tp2", 2, "one rank", "publish", "publish", 0)):
        ledger.add(kill)
    lines = [line.split() for line in table(ledger.kills).splitlines()]
    assert lines[0] == ["layout", *PHASES, "kills"]
    assert lines[1:] == [
        ["one", "0", "0", "0", "0", "2", "0", "0", "2"],
        ["tp2", "0", "0", "0", "0", "0", "1", "0", "1"],
        ["all", "0", "0", "0", "0", "2", "1", "0", "3"],
    ]
    assert ledger.saves_of_several_ranks == 1
    assert shortfalls(ledger) == [
        "2 layouts were hit, 8 are wanted",
        "no kill hit: start-up, resume, step, evaluation",
    ]
    for _ in range(4):
        ledger.add(ONE)
    assert "1 kills hit a save of several ranks, 2 are wanted" not in shortfalls(ledger)
    for _ in range(1):
        ledger.add(ONE)
    assert "1 kills hit a save of several ranks, 2 are wanted" in shortfalls(ledger)


@pytest.mark.parametrize("layout", CAMPAIGN)
def test_layouts_fit_their_ranks(layout: str, tmp_path: Path) -> None:
    from gpt1_ds.config import load
    from gpt1_ds.config.validate import world_problems
    from tools.faults.attempt import TINY

    ranks, words = CAMPAIGN[layout]
    assert not list(world_problems(load([], [*TINY, *words]), ranks))
