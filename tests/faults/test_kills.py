"""A few of the kills that tools/fault_campaign.py makes by the hundred."""

from __future__ import annotations

from pathlib import Path

from tools.fault_campaign import LAYOUTS, campaign
from tools.faults.attempt import EVERY, IN_SAVES


def test_killed_at_random_and_bit_identical_in_the_end(tiny_data: Path, tmp_path: Path) -> None:
    arguments = {"seed": 152, "delay": 0.2, "layouts": LAYOUTS, "kills_per_run": 2}
    first = campaign(tiny_data, tmp_path, kills=2, **arguments)
    assert [kill.run for kill in first.kills] == [0, 0]
    ledger = campaign(tiny_data, tmp_path, kills=4, **arguments)
    assert ledger.kills[:2] == first.kills, "a campaign continues what was interrupted"
    assert [kill.run for kill in ledger.kills[2:]] == [1, 1]
    assert [run.layout for run in ledger.finished] == list(dict.fromkeys(kill.layout for kill in ledger.kills))
    assert max(kill.lost for kill in ledger.kills) <= 2 * EVERY, "the save under way and the steps since it began"
    assert [kill.aim for kill in ledger.kills] == ["publish", "evaluation", "save", "resume"]
    assert sum(kill.phase in IN_SAVES for kill in ledger.kills) >= 2, "a kill hits what it is aimed at"
