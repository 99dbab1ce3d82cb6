"""A stand-in for `finetune` that leaves what a real trial leaves, in a fraction of its time, and misbehaves on request.

What a trial does is told by a file in the study's folder, behave.json: task -> "fail", "fail once", "diverge",
"refuse", "lose" or "wait".
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import EXIT_CONTINUE, ConfigError, TrainingError
from gpt1_ds.common.files import write_atomic, write_json
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.config import Config, load, to_yaml
from gpt1_ds.sweep import runner
from gpt1_ds.sweep.finetuning_study import load_study
from gpt1_ds.sweep.finetuning_trials import FinetuningSweep, make_sweep


class StandIn(FinetuningSweep):
    """Its trials are run by this module's `finetune`."""

    target = "tests.helpers.finetuning_trials:finetune"


def score(config: Config) -> float:
    """What a trial scores: 0.5, more for every layer taken, and a little for its seed."""
    assert config.task is not None
    taken = config.model.layers if config.task.transfer_layers is None else config.task.transfer_layers
    return 0.5 + 0.1 * taken + 0.01 * config.run.seed


def finetune(config: Config) -> int:
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    run_dir = RunDir(Path(config.run.dir) / config.run.name)
    run_dir.create(config.run.share)
    assert config.task is not None
    print(f"{config.run.name}: a line for the terminal", flush=True)
    behaviour = behaviours(run_dir.path.parents[2]).get(config.task.name, "")
    tries = len(list(read_jsonl(run_dir.events)))
    run_dir.add_event("started", step=0)
    if behaviour == "refuse":
        raise ConfigError("task.max_length=3 is too short")
    if behaviour == "diverge":
        run_dir.add_event("spike", step=2, action="raise", problem="the loss is not finite")
        raise TrainingError("step 2: the loss is not finite; lower optimizer.lr")
    if behaviour == "fail" or (behaviour == "fail once" and not tries):
        raise RuntimeError("out of luck")
    while behaviour == "wait" and (run_dir.path.parents[2] / "hold").exists():
        time.sleep(0.02)
        if asked:
            (run_dir.checkpoints / "step-00000001").mkdir(exist_ok=True)
            run_dir.add_event("stopped", step=1, reason="handover", seconds=1.0)
            return EXIT_CONTINUE
    write_atomic(run_dir.config, to_yaml(config))
    (run_dir.checkpoints / "step-00000002").mkdir(exist_ok=True)
    metrics = {"matthews" if config.task.name == "cola" else "accuracy": score(config)}
    if behaviour != "lose":
        told = {"task": config.task.name, "split": "dev", "step": 2, "metrics": metrics}
        write_json(run_dir.evaluation, [told])
    write_json(run_dir.done, {"step": 2})
    run_dir.add_event("stopped", step=2, reason="done", seconds=2.0)
    return 0


def behaviours(folder: Path) -> dict[str, str]:
    file = folder / "behave.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


FILE = """
checkpoint: nowhere
seeds: [1, 2]
tasks: [finetune/cola, finetune/rte]
variants: [full, no pre-training]
"""


def planned(folder: Path, text: str = FILE, *arguments: str) -> StandIn:
    """The study `s` below `folder`, from a file of this text."""
    (folder / "s.yaml").write_text(text)
    sweep = make_sweep(load_study(str(folder / "s.yaml")), load, [f"run.dir={folder}/runs", *arguments])
    return StandIn(sweep.study, sweep.trials, sweep.curve)


def behave(sweep: FinetuningSweep, **behaviour: str) -> None:
    """Say what trials do; those that wait continue when `hold` is removed."""
    sweep.folder.mkdir(parents=True, exist_ok=True)
    write_json(sweep.folder / "behave.json", behaviour)
    (sweep.folder / "hold").touch()


def run(folder: str, jobs: int) -> int:
    """A study as a program of its own, for tests that kill it."""
    return runner.run(planned(Path(folder)), jobs)


def events(sweep: FinetuningSweep, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_jsonl(sweep.folder / "events.jsonl") if event["event"] == kind]
