"""Sinks copy the records of a run to W&B, TensorBoard and trackio, beside metrics.jsonl. Rank 0 alone has them.

Each tracker lives in a process of its own (tracking/worker.py) that is fed through a pipe, so nothing that happens to
it or to its service can stop, slow or crash a run: at worst one warning, and the run continues without. What is in the
pipe when a rank is killed is still written.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import gpt1_ds
from gpt1_ds.common import log
from gpt1_ds.config import Config
from gpt1_ds.tracking.record import flat

EXTRA = "'gpt1-ds[tracking]'"


def library_problems(config: Config) -> Iterator[str]:
    """Yields a line for each tracker that is asked for and not installed."""
    tracking = config.tracking
    asked = (("wandb", tracking.wandb, "wandb"), ("tensorboard", tracking.tensorboard, EXTRA))
    for name, value, package in (*asked, ("trackio", tracking.trackio, EXTRA)):
        if value not in ("off", False) and importlib.util.find_spec(name) is None:
            said = f"tracking.{name}={str(value).lower()}"
            yield f"{said}: {name} is not installed: pip install {package}, or leave the key out"


GONE = "{} is off for the rest of this run ({}); metrics.jsonl has everything"  # (tracker, why)
MESSAGES_KEPT = 10_000  # that the tracker has not taken yet; with more than that it is given up
PIPE_BYTES = 1 << 20
FINISH_SECONDS = 60.0  # a run waits this long for a tracker at its end
Table = list[dict[str, Any]]


@dataclass(frozen=True)
class Reference:
    """Says where a checkpoint lies; its files stay there."""

    name: str
    folder: Path
    aliases: list[str]
    metadata: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Holds what is known at the end of a segment. A sink shows of it what its tracker can show."""

    summary: dict[str, Any]
    tables: dict[str, Table] = field(default_factory=dict)
    references: list[Reference] = field(default_factory=list)
    failed: bool = False


class Sink(Protocol):
    """No method raises, and none but `close` blocks: a tracker that fails costs one warning."""

    def log(self, record: dict[str, Any]) -> None:
        """One record of metrics.jsonl."""

    def rewind(self, step: int) -> None:
        """Steps after `step` are repeated, from now on; also said once at the beginning."""

    def close(self, ending: Ending) -> None:
        """The segment ends. Waits for the tracker for a limited time."""


def values_of(record: dict[str, Any]) -> dict[str, float]:
    """Returns the numbers of a record by the names that trackers show: `loss` of kind train is train/loss; a task's
    begin with task and split, those of train.evaluations as in eval.json (zero-shot/blimp/accuracy).
    """
    kind = record["kind"]
    where = {"task": f"{record.get('task')}/{record.get('split')}", "score": record.get("task")}.get(kind, kind)
    scores = record.get("metrics", {})
    found = {**flat({key: value for key, value in record.items() if key != "metrics"}), **scores}
    return {f"{where}/{key}": value for key, value in found.items() if isinstance(value, (int, float))}


class ProcessSink:
    """Sends what a run logs to the tracker called `name`, whose worker is `module`; the first message is `start`."""

    def __init__(self, name: str, module: str, start: dict[str, Any], variables: Mapping[str, str]) -> None:
        self.name = name
        self._process: subprocess.Popen[str] | None = None
        self._messages: queue.Queue[str | None] = queue.Queue(MESSAGES_KEPT)
        try:
            self._process = _worker(module, variables)
        except OSError as error:
            self.give_up(f"{type(error).__name__}: {error}")
            return
        self._listener = threading.Thread(target=self._listen, args=(self._process,), name=f"{name}-ear", daemon=True)
        threading.Thread(target=self._feed, args=(self._process,), name=f"{name}-mouth", daemon=True).start()
        self._listener.start()
        self._send("begin", start)

    def _finish(self, **arguments: Any) -> None:
        """The last message; gives up on the tracker where that takes longer than FINISH_SECONDS."""
        self._send("finish", arguments)
        self._send(None)
        process = self._process
        if process is None:
            return
        try:
            process.wait(FINISH_SECONDS)
        except subprocess.TimeoutExpired:
            self.give_up(f"it did not end within {FINISH_SECONDS:.0f} s")
        self._listener.join(5)
        self._process = None

    def give_up(self, reason: str) -> None:
        """Says so, once, and continue without the tracker."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
        log.say(GONE.format(self.name, reason))

    def _send(self, method: str | None, arguments: dict[str, Any] | None = None) -> None:
        if self._process is None:
            return
        try:
            self._messages.put_nowait(None if method is None else json.dumps([method, arguments]) + "\n")
        except queue.Full:
            self.give_up("it takes nothing any more")
        except (TypeError, ValueError) as error:
            self.give_up(f"{type(error).__name__}: {error}")

    def _feed(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None, "it is a pipe"
        with contextlib.suppress(OSError):  # it has ended, and the listener says so
            while (message := self._messages.get()) is not None:
                process.stdin.write(message)
                process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Pass on the lines that the other process has for people; notice when it ends before its time."""
        assert process.stdout is not None, "it is a pipe"
        for line in process.stdout:
            if self._process is process:
                log.say(line.rstrip("\n"))
        code = process.wait()
        if self._process is process and code:
            self._process = None
            late = "its service does not answer" if code == -14 else f"its process ended with {code}"
            self.give_up(late)
        elif self._process is process:
            self._process = None  # finished, or it has said why not


def _worker(module: str, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    """Returns a process that outlives a kill of this one for as long as it takes to write the rest; `variables` are of
    its environment, unless a person set them.
    """
    package = str(Path(gpt1_ds.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**variables, **os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,  # Ctrl-C is for the run, which then says how it ended
    )
    with contextlib.suppress(OSError):
        assert process.stdin is not None, "it is a pipe"
        fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return process


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


@dataclass(frozen=True, kw_only=True)
class SegmentStart:
    """Says how a segment begins. `config` is shown beside the run."""

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

    def __init__(self, start: SegmentStart) -> None:
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
        """Shows `rows` as a table; a cell that a row lacks stays empty."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        if rows:
            self._send(
                "table", {"name": name, "columns": columns, "rows": [[row.get(c) for c in columns] for row in rows]}
            )

    def image(self, name: str, file: Path) -> None:
        """Shows a PNG file, of which W&B takes a copy."""
        self._send("image", {"name": name, "file": str(file.resolve())})

    def reference(self, name: str, folder: Path, aliases: list[str], metadata: dict[str, Any]) -> None:
        """An artifact that says where a checkpoint is; its files stay where they are."""
        place = folder.resolve().as_uri()
        self._send("reference", {"name": name, "place": place, "aliases": aliases, "metadata": metadata})

    def finish(self, summary: dict[str, Any], failed: bool = False) -> None:
        """Ends the segment."""
        self._finish(summary=summary, failed=failed)
