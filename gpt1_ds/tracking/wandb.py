"""Weights & Biases as a mirror of metrics.jsonl: one run per training run, tokens as the x axis, never able to stop
it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from gpt1_ds.common import log
from gpt1_ds.config import Config


class Mirror:
    """Sends records to W&B when asked to; every failure becomes one warning and then silence. Rank 0 only."""

    def __init__(self, config: Config, folder: Path, facts: dict[str, Any]) -> None:
        self._run: Any = None
        if config.tracking.wandb == "off":
            return
        try:
            self._run = _begin(config, folder, facts)
        except Exception as error:
            self._give_up(error)

    def log(self, record: dict[str, Any]) -> None:
        """No `step=`: W&B drops points whose step goes back, as it does after a rollback."""
        if self._run is None:
            return
        kind = record["kind"]
        where = f"{record['task']}/{record['split']}" if kind == "task" else kind
        found = {**record, **record.get("metrics", {})}
        values = {f"{where}/{key}": value for key, value in found.items() if isinstance(value, (int, float))}
        try:
            self._run.log({**values, "tokens": record["tokens"]})
        except Exception as error:
            self._give_up(error)

    def finish(self, summary: dict[str, Any]) -> None:
        if self._run is None:
            return
        try:
            self._run.summary.update(summary)
            self._run.finish(quiet=True)
        except Exception as error:
            self._give_up(error)
        self._run = None

    def _give_up(self, error: Exception) -> None:
        self._run = None
        log.say(f"W&B is off for the rest of this run ({type(error).__name__}: {error}); metrics.jsonl has everything")


def run_id(folder: Path) -> str:
    """The same id for every segment of one run: a hash of where it lives."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]


def _begin(config: Config, folder: Path, facts: dict[str, Any]) -> Any:
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    run = wandb.init(
        id=run_id(folder),
        name=config.run.name,
        dir=str(folder),
        project=config.tracking.project,
        group=config.tracking.group,
        tags=config.tracking.tags,
        mode="offline" if config.tracking.wandb == "offline" else "online",
        job_type="pretrain" if config.task is None else "finetune",
        resume="allow",
        config=facts,
        settings=wandb.Settings(init_timeout=60, console="off"),
    )
    run.define_metric("tokens")
    run.define_metric("*", step_metric="tokens")
    return run
