"""The training's end of a sink. The tracker lives in a process of its own (tracking/worker.py) that is fed through a
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gpt1_ds
from gpt1_ds.common import log
from gpt1_ds.tracking.sink import GONE

MESSAGES_KEPT = 10_000  # that the tracker has not taken yet; with more than that it is given up
PIPE_BYTES = 1 << 20
FINISH_SECONDS = 60.0  # a run waits this long for a tracker at its end


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

    @property
    def is_on(self) -> bool:
        return self._process is not None

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
        """Say so, once, and continue without the tracker."""
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
    """A process that outlives a kill of this one for as long as it takes to write the rest; `variables` are of its
    environment, unless a person set them.
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
