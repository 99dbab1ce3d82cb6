"""What a run says: a few plain lines for people on rank 0, everything in one file per rank; and how far long work is,
as one bar below all lines of a terminal, nothing in a pipe or a log file.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar, cast

from gpt1_ds.common import stop_signals
from gpt1_ds.common.text import shown

LOGGER = logging.getLogger("gpt1_ds")
CLEAR_LINE = "\r\x1b[2K"
_HANDLERS: list[logging.Handler] = []
_TERMINALS: list[IO[str]] = []
_ABOVE: list[Callable[[str], None]] = []  # while a progress bar is drawn: what prints a line above it
_SHOWN: list[Callable[[str], None]] = []  # while a progress bar is drawn: what puts words into it
_Answer = TypeVar("_Answer")


def setup(rank: int, log_file: Path, terminal: IO[str]) -> None:
    """Rank 0 speaks on `terminal`; every rank writes `log_file` in full. Libraries' chatter goes to the file alone."""
    terminal = cast(IO[str], _Terminal(terminal))
    _TERMINALS[:] = [terminal]
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    LOGGER.setLevel(logging.DEBUG)
    file_handler = _LogFile(log_file)
    file_handler.setFormatter(logging.Formatter(f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s"))
    _HANDLERS.append(file_handler)
    if rank == 0:
        stream = _Lines(terminal)
        stream.setFormatter(logging.Formatter("%(message)s"))
        stream.setLevel(logging.INFO)
        stream.addFilter(lambda record: record.name == LOGGER.name)
        _HANDLERS.append(stream)
    for handler in _HANDLERS:
        root.addHandler(handler)
    logging.captureWarnings(True)


class _Terminal:
    """A stream to which nothing is written while its terminal is gone, or the disk of a job's output full: the run has
    yet to save.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._unless_gone(lambda: self._stream.write(text), len(text))

    def flush(self) -> None:
        self._unless_gone(self._stream.flush, None)

    @staticmethod
    def _unless_gone(write: Callable[[], _Answer], when_gone: _Answer) -> _Answer:
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                raise
            return when_gone


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A full disk must not fill the terminal with complaints of the logging module."""

    def close(self) -> None:
        """Lines that a full disk has not taken must not hide the error with which the run ends."""
        with contextlib.suppress(OSError):
            super().close()


class _Lines(logging.Handler):
    """Shows what is logged on the terminal, above the progress bar if there is one."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self.stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the log has the line: complaints of the logging module would fill it
            _write(self.stream, self.format(record))


def teardown() -> None:
    """Undoes `setup`."""
    _TERMINALS.clear()
    while _HANDLERS:
        handler = _HANDLERS.pop()
        logging.getLogger().removeHandler(handler)
        handler.close()
    logging.captureWarnings(False)


def say(message: str) -> None:
    """One line for the person who watches (rank 0) and for the log."""
    message = shown(message)
    if _HANDLERS:
        LOGGER.info(message)
    else:
        _write(sys.stderr, message)


def say_from_handler(message: str) -> None:
    """Says a line from a signal handler. Another thread writes it: the handler may have interrupted a line."""
    threading.Thread(target=say, args=(message,), daemon=True).start()


def alarm(message: str) -> None:
    """One line for the person who watches, from whichever rank it comes."""
    for stream in _TERMINALS:
        line = shown(message)
        if not _ABOVE and _watched(stream):  # rank 0 may draw a bar in this line, and draws it again below
            line = CLEAR_LINE + line
        with contextlib.suppress(OSError):  # a pipe that nobody reads: who raises an alarm has something to do next
            _write(stream, line)


def _write(stream: IO[str], message: str) -> None:
    if _ABOVE:
        _ABOVE[-1](message)
    else:
        print(message, file=cast(IO[str], _Terminal(stream)), flush=True)


@contextlib.contextmanager
def _listed(functions: list[Callable[[str], None]], function: Callable[[str], None]) -> Iterator[None]:
    functions.append(function)
    try:
        yield
    finally:
        functions.remove(function)


def clear_line() -> None:
    """On a terminal, remove what a rank that was killed has left of its progress bar."""
    if not _ABOVE and is_terminal():
        with contextlib.suppress(OSError):
            print(CLEAR_LINE, end="", file=terminal(), flush=True)


def terminal() -> IO[str]:
    """Returns where rank 0 speaks."""
    return next((handler.stream for handler in _HANDLERS if isinstance(handler, _Lines)), sys.stderr)


def is_terminal() -> bool:
    """Returns whether somebody watches live; NO_COLOR and dumb terminals get plain lines."""
    return _watched(terminal())


def _watched(stream: IO[str]) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") != "dumb" and "NO_COLOR" not in os.environ


class Show(Protocol):
    """Says how much is done, in a few `words`, and of how much; what is left out stays as it is."""

    def __call__(self, done: float | None = None, words: str | None = None, total: float | None = None) -> None: ...


def show_nothing(done: float | None = None, words: str | None = None, total: float | None = None) -> None:
    """Shows nothing, where nobody watches."""


@contextlib.contextmanager
def bar(
    total: float | None = None, done: float = 0, unit: Callable[[float], str] = "{:.0f}".format, watched: bool = True
) -> Iterator[Show]:
    """Draws a bar while the block runs, where somebody watches, and yields what moves it.

    It is drawn again several times a second by a thread, so that its clock also moves while the work does not. What
    the program says meanwhile appears above it. `unit` writes an amount; without a `total` nobody knows the end.
    `watched=False` is for work whose output on the terminal shows how far it is.
    """
    if not (watched and is_terminal()):
        yield show_nothing
        return
    from gpt1_ds.common.terminal import Bar  # loads rich

    with contextlib.ExitStack() as stack:
        drawn = stack.enter_context(Bar(terminal(), total, done, unit))
        stack.enter_context(_listed(_ABOVE, drawn.print))
        stack.enter_context(_listed(_SHOWN, lambda words: drawn.show(words=words)))
        stack.enter_context(_removed_at_termination(drawn.stop))
        yield drawn.show


def doing(words: str) -> None:
    """Says in the progress bar that is drawn, if there is one, what is done now."""
    if _SHOWN:
        _SHOWN[-1](words)


@contextlib.contextmanager
def _removed_at_termination(remove: Callable[[], None]) -> Iterator[None]:
    """Where SIGTERM would end this process at once, it calls `remove` before."""
    before = signal.getsignal(signal.SIGTERM)

    def end(number: int, _: Any) -> None:
        remove()
        signal.signal(number, before)
        os.kill(os.getpid(), number)

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or before not in (signal.SIG_DFL, stop_signals.terminate):
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
