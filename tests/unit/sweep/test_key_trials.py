"""Trials of `--sweep`: what trackers show of them."""

from __future__ import annotations

from gpt1_ds.config import load
from gpt1_ds.sweep.key_sweep import make_key_sweep


def test_trackers_show_the_sweep_and_its_values() -> None:
    own = ["run.name=lr", "tracking.facts={team: nlp}"]
    sweep = make_key_sweep(["optimizer.lr=1e-3,1e-2", "run.seed=2"], lambda words: load([], [*own, *words]), None, None)
    tracking = sweep.trials[1].config.tracking
    facts = {"team": "nlp", "study": "lr-sweep", "arm": "optimizer.lr=1e-2 run.seed=2"}
    assert (tracking.group, tracking.facts) == ("lr-sweep", facts)
