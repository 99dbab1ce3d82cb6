"""A few of the kills that tools/fault_campaign.py makes by the hundred."""

from __future__ import annotations

from pathlib import Path

from tools.fault_campaign import EVERY, campaign


def test_killed_at_random_and_bit_identical_in_the_end(tiny_data: Path, tmp_path: Path) -> None:
    tally = campaign(tiny_data, tmp_path, kills=5, seed=7, delay=0.2)
    assert sum(tally.kills.values()) == 5
    assert max(tally.steps_lost) <= 2 * EVERY, "at most the save under way and the steps since it began"
