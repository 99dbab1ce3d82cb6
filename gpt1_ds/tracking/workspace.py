"""`tracking workspace`: a saved view of a W&B project with the panels that runs and scaling studies fill.

The package wandb-workspaces makes it, because only that package follows the server's format of views.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from gpt1_ds.common.errors import UserError
from gpt1_ds.tracking.sync import reach_server
from gpt1_ds.tracking.worker import error_line

PACKAGE = "wandb_workspaces"
TOKENS = "tokens"
TRAINING = ("train/loss", "eval/loss", "eval/bits_per_byte", "train/learning_rate", "train/grad_norm")
SPEED = ("train/tokens_per_second", "train/step_seconds", "train/data_wait_seconds", "train/mfu")
MEMORY = ("train/peak_memory_gib",)
LOSS = "final/held_out_loss"
LAW = ("fit/alpha", "fit/beta", "fit/E", "fit/error_percent")
TABLES = ("cells", "predictions")


def save(entity: str, project: str, name: str, figures: Sequence[str]) -> str:
    """Adds the view `name` to a project; `figures` are names of a scaling report's. Returns its address.

    Raises UserError where wandb-workspaces is not installed, or the server cannot be reached or refuses it.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise UserError("wandb-workspaces is not installed: pip install 'gpt1-ds[tracking]'")
    reach_server()
    view = build(entity, project, name, figures)
    try:
        return str(view.save().url)
    except Exception as error:  # of W&B's client, of its transport or of the answer's form
        raise UserError(f"{entity}/{project}: W&B does not take the workspace: {error_line(error)}") from None


def build(entity: str, project: str, name: str, figures: Sequence[str]) -> Any:
    """Returns the wandb_workspaces.workspaces.Workspace; nothing is sent."""
    panels: Any = importlib.import_module(f"{PACKAGE}.reports.v2")  # without types, and not always installed
    workspaces: Any = importlib.import_module(f"{PACKAGE}.workspaces")

    def lines(*names: str) -> list[Any]:
        return [panels.LinePlot(title=metric, x=TOKENS, y=[metric], log_x=metric.endswith("/loss")) for metric in names]

    def against(key: str, title: str) -> Any:
        y = panels.SummaryMetric(LOSS)
        return panels.ScatterPlot(title=title, x=panels.Config(key), y=y, log_x=True, log_y=True)

    cells = [against("N", "held-out loss against N"), against("D", "held-out loss against D")]
    law = [panels.ScalarChart(title=metric, metric=panels.SummaryMetric(metric)) for metric in LAW]
    images = [panels.MediaBrowser(title=figure, media_keys=[f"figures/{figure}"]) for figure in figures]
    tables = [panels.WeavePanelSummaryTable(table_name=table) for table in TABLES]
    sections = [
        workspaces.Section(name="Training", panels=lines(*TRAINING), is_open=True),
        workspaces.Section(name="Speed and memory", panels=lines(*SPEED, *MEMORY), is_open=True),
        workspaces.Section(name="Scaling: cells", panels=[*cells, *tables], is_open=True),
        workspaces.Section(name="Scaling: the fit", panels=[*law, *images], is_open=True),
    ]
    return workspaces.Workspace(entity=entity, project=project, name=name, sections=sections)
