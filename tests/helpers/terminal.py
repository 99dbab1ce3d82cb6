"""The program on a real pseudo-terminal, and what a person sees on it: the screen that its output amounts to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyte

ROOT = Path(__file__).parents[2]
BAR = "━"


@dataclass
class Terminal:
    """`moments` are the screens that differ, with everything that has scrolled away above them."""

    process: subprocess.Popen[bytes]
    descriptor: int
    columns: int
    moments: list[list[str]] = field(default_factory=list)
    raw: bytes = b""

    def __post_init__(self) -> None:
        self.screen = pyte.HistoryScreen(self.columns, 24, history=10_000)
        self._stream = pyte.ByteStream(self.screen)

    @property
    def lines(self) -> list[str]:
        """All lines, the oldest first, without empty ones."""
        gone = ["".join(line[x].data for x in range(self.columns)) for line in self.screen.history.top]
        return [line.rstrip() for line in (*gone, *self.screen.display) if line.strip()]

    def watch(self, until: Callable[[], bool] = lambda: False, seconds: float = 240) -> None:
        """Follow the output until the program has ended, or `until` holds."""
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, self.lines
            if self._read():
                self._note()
            elif self.process.poll() is not None:
                return

    def _read(self) -> bool:
        """Take what is there, with what follows at once: whole writes."""
        found = b""
        while select.select([self.descriptor], [], [], 0.02 if found else 0.1)[0]:
            try:
                chunk = os.read(self.descriptor, 1 << 16)
            except OSError:  # nobody holds its other end
                break
            if not chunk:
                break
            found += chunk
        self.raw += found
        self._stream.feed(found)
        return bool(found)

    def _note(self) -> None:
        if not self.moments or self.moments[-1] != self.lines:
            self.moments.append(self.lines)


def _in_foreground() -> None:
    """Ctrl-C reaches it, also where the tests run in the background of a script, which ignores it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def program(command: Sequence[str], folder: Path, columns: int = 80) -> Iterator[Terminal]:
    """`command` behind Python's name, as the foreground job of a terminal of its own."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    settings = termios.tcgetattr(theirs)
    settings[3] &= ~termios.ECHO  # pyte drops what follows an echoed Ctrl-C in the same line
    settings[3] |= termios.NOFLSH  # at Ctrl-C a terminal drops output that nobody has read yet
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    environment |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", "PYTHONUTF8": "1"}
    process = subprocess.Popen(
        [sys.executable, *command],
        **{"stdin": theirs, "stdout": theirs, "stderr": theirs, "env": environment, "cwd": folder},
        start_new_session=True,
        preexec_fn=_in_foreground,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours, columns)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
