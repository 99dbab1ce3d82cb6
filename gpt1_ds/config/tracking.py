"""Where metrics are copied to; metrics.jsonl in the run folder is always the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    wandb: Literal["off", "offline", "online"] = "off"  # offline: written to the run folder, uploaded later
    tensorboard: bool = False  # event files in <run>/tensorboard, for `tensorboard --logdir`
    trackio: bool = False  # a run in trackio's own database, for `trackio show`; its variables (TRACKIO_DIR) count
    entity: str | None = None  # W&B user or team; null: WANDB_ENTITY, else your own
    project: str = "gpt1-ds"  # W&B and trackio project
    group: str | None = None  # W&B and trackio group, a study's name for example; null: none
    tags: list[str] = field(default_factory=list)  # W&B tags
    artifacts: Literal["reference", "off"] = "reference"  # tell W&B where the best and last checkpoint lie; no upload

    def problems(self) -> Iterator[str]:
        if (self.wandb != "off" or self.trackio) and not self.project:
            yield "tracking.project is empty; name a project, or set tracking.wandb=off and tracking.trackio=false"
