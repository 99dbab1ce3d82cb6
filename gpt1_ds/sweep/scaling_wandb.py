"""A scaling study's own run in W&B, and its fit there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, load_recorded
from gpt1_ds.config.sections import RunConfig, TrackingConfig

if TYPE_CHECKING:
    from gpt1_ds.tracking.sinks import WandbLogger

PARAMETERS = ("alpha", "beta", "E", "A", "B", "R_D", "R_N", "a", "b")  # of a fit, in the order of fit.json


def tracking_of(folder: Path) -> TrackingConfig | None:
    """Returns how the cells of the study in `folder` are shown in W&B; None where they are not."""
    cell = next(folder.glob("*/config.yaml"), None)
    tracking = None if cell is None else load_recorded(cell).tracking
    return tracking if tracking and tracking.wandb != "off" and RunDir(folder).study.exists() else None


def publish_fit(
    folder: Path,
    tracking: TrackingConfig,
    record: Mapping[str, Any],
    predictions: Sequence[Mapping[str, Any]],
    pictures: Iterable[Path],
) -> None:
    """Shows in the W&B run of the study in `folder` the parameters of its fit (`record` is fit.json) with their
    intervals, its errors, what it predicts, and the PNG files of its figures.
    """
    summary: dict[str, Any] = {"fit/error_percent": record["fit_error_percent"], "fit/points": record["points"]}
    summary |= {f"fit/{name}": record[name] for name in PARAMETERS if name in record}
    for name, interval in record["intervals"].items():
        if interval is not None:
            summary[f"fit/{name}_low"], summary[f"fit/{name}_high"] = interval
    for row in record["held_out"]:
        summary[f"held_out/{row['cell']}_error_percent"] = row["error_percent"]
    logger = study_logger(folder, tracking, json.loads(RunDir(folder).study.read_text(encoding="utf-8")))
    logger.table("predictions", [dict(row) for row in predictions])
    for picture in pictures:
        logger.image(f"figures/{picture.stem}", picture)
    logger.finish(summary)


def study_logger(folder: Path, tracking: TrackingConfig, described: dict[str, Any]) -> WandbLogger:
    """Returns the W&B run of the study in `folder`, beside those of its cells."""
    from gpt1_ds.tracking.sinks import WandbLogger
    from gpt1_ds.tracking.wandb import start

    as_run = Config(run=RunConfig(name=folder.name), tracking=replace(tracking, group=folder.name))
    return WandbLogger(start(as_run, RunDir(folder), "study", described))
