"""The sinks of TensorBoard and trackio, which show curves by step and little else."""

from __future__ import annotations

from typing import Any

from gpt1_ds.tracking.process_sink import ProcessSink
from gpt1_ds.tracking.sink import Ending, values_of


class CurveSink(ProcessSink):
    """Numbers by step, and at the end the summary."""

    def log(self, record: dict[str, Any]) -> None:
        """One record of metrics.jsonl; its step is the x axis."""
        values = {key: value for key, value in values_of(record).items() if not key.endswith("/step")}
        self._send("log", {"values": values, "step": record["step"]})

    def rewind(self, step: int) -> None:
        """trackio removes no points."""

    def close(self, ending: Ending) -> None:
        self._finish(summary=ending.summary, failed=ending.failed)


class TensorBoardSink(CurveSink):
    """Event files in `folder`; `config` is YAML."""

    def __init__(self, folder: str, config: str) -> None:
        super().__init__("TensorBoard", "gpt1_ds.tracking.tensorboard", {"folder": folder, "config": config}, {})

    def rewind(self, step: int) -> None:
        """TensorBoard drops what it has after `step`."""
        self._send("rewind", {"step": step})


class TrackioSink(CurveSink):
    """The run `name` of `project` in trackio's database."""

    def __init__(self, project: str, name: str, group: str | None, config: dict[str, Any]) -> None:
        start = {"project": project, "name": name, "group": group, "config": config}
        super().__init__("trackio", "gpt1_ds.tracking.trackio", start, {})
