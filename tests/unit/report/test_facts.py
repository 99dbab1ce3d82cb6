"""The tables of a run's page."""

from __future__ import annotations

from typing import Any

from gpt1_ds.report.facts import wall_clock


def event(minute: int, name: str, **more: Any) -> dict[str, Any]:
    return {"time": f"2026-11-22T12:{minute:02d}:00Z", "event": name, **more}


def test_a_start_that_was_killed_counts_up_to_its_last_event() -> None:
    events = [
        *(event(0, "started"), event(10, "saved"), event(12, "saved")),  # killed
        *(event(20, "started"), event(25, "stopped", seconds=330.0)),
        *(event(30, "started"), event(31, "saved")),  # killed, or running
    ]
    assert wall_clock(events) == 12 * 60 + 330 + 60


def test_times_that_are_none() -> None:
    assert wall_clock([]) == 0
    assert wall_clock([{"time": "t0", "event": "started"}, {"event": "stopped", "seconds": 5.0}]) == 5
