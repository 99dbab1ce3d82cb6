"""The sink of Weights & Biases."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpt1_ds.tracking.process_sink import ProcessSink
from gpt1_ds.tracking.sink import Ending, Table, values_of


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a segment begins. `config` is shown beside the run."""

    mode: str  # offline or online
    id: str
    name: str
    folder: str  # the run folder; W&B writes below its wandb/
    entity: str | None
    project: str
    group: str | None
    tags: list[str]
    job_type: str  # pretrain, finetune or eval
    config: dict[str, Any]
    pid: int  # whose memory and CPU time W&B shows
    patience: float = 60.0  # seconds that W&B's service may take for one message before it is given up
    upload_seconds: float = 30.0  # online: for what is not uploaded yet at the end


class WandbLogger(ProcessSink):
    """A segment of a W&B run. A step that is repeated after a kill stands twice, with the same value."""

    def __init__(self, start: Start) -> None:
        folder = str(Path(start.folder) / "wandb")  # for what W&B would put into the home folder: its tables above all
        own = {"WANDB_DATA_DIR": folder, "WANDB_CACHE_DIR": folder, "WANDB_SILENT": "true"}
        super().__init__("W&B", "gpt1_ds.tracking.wandb", asdict(start), own)

    def log(self, record: dict[str, Any]) -> None:
        """One record of metrics.jsonl."""
        self._send("log", {"values": values_of(record), "step": record["step"], "tokens": record["tokens"]})

    def rewind(self, step: int) -> None:
        """W&B removes no points."""

    def close(self, ending: Ending) -> None:
        """Tables, where the checkpoints lie, and the summary."""
        for name, rows in ending.tables.items():
            self.table(name, rows)
        for reference in ending.references:
            self.reference(reference.name, reference.folder, reference.aliases, reference.metadata)
        self.finish(ending.summary, ending.failed)

    def table(self, name: str, rows: Table) -> None:
        """Show `rows` as a table; a cell that a row lacks stays empty."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        if rows:
            self._send(
                "table", {"name": name, "columns": columns, "rows": [[row.get(c) for c in columns] for row in rows]}
            )

    def reference(self, name: str, folder: Path, aliases: list[str], metadata: dict[str, Any]) -> None:
        """An artifact that says where a checkpoint is; its files stay where they are."""
        place = folder.resolve().as_uri()
        self._send("reference", {"name": name, "place": place, "aliases": aliases, "metadata": metadata})

    def finish(self, summary: dict[str, Any], failed: bool = False) -> None:
        """End the segment."""
        self._finish(summary=summary, failed=failed)
