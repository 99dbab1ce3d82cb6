"""Trials of a small study, and run folders that hold what a run leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpt1_ds.sweep.scaling_study import ScalingStudy, load_scaling
from gpt1_ds.sweep.scaling_trials import ScalingTrial, make_trials

LADDER = {"name": "ladder", "layers": [1, 2, 4], "tokens": ["8K", "32K", "128K"]}
STUDY = {
    "name": "small",
    "overrides": {"model.context": 32, "train.global_batch": 8, "train.micro_batch": 4},
    "width_per_layer": 16,
    "head_width": 16,
    "arms": [LADDER, {"name": "seeds", "layers": [1], "tokens": ["8K"], "seeds": [2]}],
}
VOCABULARY, DATA_TOKENS = 500, 1_000_000


def read(folder: Path, **changed: Any) -> ScalingStudy:
    file = folder / "small.yaml"
    file.write_text(json.dumps({**STUDY, **changed}))
    return load_scaling(str(file))


def small(folder: Path, **changed: Any) -> tuple[ScalingTrial, ...]:
    return make_trials(read(folder, **changed), [f"run.dir={folder / 'runs'}"], VOCABULARY, DATA_TOKENS)


def finish(trial: ScalingTrial, loss: float, steps: int | None = None) -> None:
    """Leave what a run leaves that trained to `steps`, its last if none are named."""
    run_dir, last = trial.run_dir, steps or trial.steps
    run_dir.create()
    run_dir.add_event("started", step=trial.begin, steps=trial.steps)
    lines: list[dict[str, Any]] = []
    for step in sorted({*range(10, last, 10), last}):
        lines.append({"kind": "train", "step": step, "loss": loss, "step_seconds": 0.5})
        if step % 20 == 0 or step == last:
            lines.append({"kind": "eval", "step": step, "loss": loss, "bits_per_byte": loss / 2})
    run_dir.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if last == trial.steps:
        run_dir.done.write_text(json.dumps({"step": last}))
