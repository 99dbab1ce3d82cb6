"""The training's end of the W&B logger. W&B lives in a process of its own (tracking/wandb.py) that is fed through a
pipe, so nothing that happens to it or to its service can stop, slow or crash a run: at worst one warning, and the run
continues without. What is in the pipe when a rank is killed is still written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gpt1_ds
from gpt1_ds.common import log

MESSAGES_KEPT = 10_000  # that W&B has not taken yet; with more than that it is given up
PIPE_BYTES = 1 << 20
FINISH_SECONDS = 60.0  # a run waits this long for W&B at its end


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a segment begins. `config` is shown beside the run."""

    mode: str  # offline or online
    id: str
    name: str
    folder: str  # the run folder; W&B writes below its wandb/
    project: str
    group: str | None
    tags: list[str]
    job_type: str  # pretrain, finetune or eval
    config: dict[str, Any]
    pid: int  # whose memory and CPU time W&B shows
    patience: float = 60.0  # seconds that W&B's service may take for one message before it is given up
    upload_seconds: float = 30.0  # online: for what is not uploaded yet at the end


class WandbLogger:
    """Sends what a run logs to W&B. Rank 0 only. No method raises or blocks, but for
    `finish`, which takes FINISH_SECONDS at most.
    """

    def __init__(self, start: Start) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._messages: queue.Queue[str | None] = queue.Queue(MESSAGES_KEPT)
        try:
            self._process = _worker(Path(start.folder) / "wandb")
        except OSError as error:
            self.give_up(f"{type(error).__name__}: {error}")
            return
        self._listener = threading.Thread(target=self._listen, args=(self._process,), name="wandb-ear", daemon=True)
        threading.Thread(target=self._feed, args=(self._process,), name="wandb-mouth", daemon=True).start()
        self._listener.start()
        self._send("begin", asdict(start))

    @property
    def is_on(self) -> bool:
        return self._process is not None

    def log(self, record: dict[str, Any]) -> None:
        """One record of metrics.jsonl: `loss` of kind train is train/loss; a task's keys begin with task and split."""
        kind = record["kind"]
        where = f"{record['task']}/{record['split']}" if kind == "task" else kind
        found = {**record, **record.get("metrics", {})}
        values = {f"{where}/{key}": value for key, value in found.items() if isinstance(value, (int, float))}
        self._send("log", {"values": {**values, "tokens": record["tokens"]}})

    def table(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
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
        """End the segment; gives up on W&B where that takes longer than FINISH_SECONDS."""
        self._send("finish", {"summary": summary, "failed": failed})
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
        """Say so, once, and continue without W&B."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
        log.say(f"W&B is off for the rest of this run ({reason}); metrics.jsonl has everything")

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


def _worker(folder: Path) -> subprocess.Popen[str]:
    """tracking/wandb.py as a process that outlives a kill of this one for as long as it takes to write the rest. What
    W&B would put into the home folder, the tables' files above all, goes to `folder`.
    """
    own = {"WANDB_DATA_DIR": str(folder), "WANDB_CACHE_DIR": str(folder), "WANDB_SILENT": "true"}
    package = str(Path(gpt1_ds.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpt1_ds.tracking.wandb"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**own, **os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,  # Ctrl-C is for the run, which then says how it ended
    )
    with contextlib.suppress(OSError):
        assert process.stdin is not None, "it is a pipe"
        fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return process
