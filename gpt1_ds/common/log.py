"""What a run says: a few plain lines for people on rank 0, everything in one file per rank."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from gpt1_ds.common.text import shown

LOGGER = logging.getLogger("gpt1_ds")
_HANDLERS: list[logging.Handler] = []
_TERMINALS: list[IO[str]] = []
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
    _add(root, file_handler)
    if rank == 0:
        stream = logging.StreamHandler(terminal)
        stream.setFormatter(logging.Formatter("%(message)s"))
        stream.setLevel(logging.INFO)
        stream.addFilter(lambda record: record.name == LOGGER.name)
        _add(root, stream)
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
    def _unless_gone(write: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                raise
            return otherwise


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A full disk must not fill the terminal with complaints of the logging module."""


def teardown() -> None:
    """Undo `setup`."""
    while _HANDLERS:
        handler = _HANDLERS.pop()
        logging.getLogger().removeHandler(handler)
        handler.close()
    logging.captureWarnings(False)


def _add(root: logging.Logger, handler: logging.Handler) -> None:
    root.addHandler(handler)
    _HANDLERS.append(handler)


def say(message: str) -> None:
    """One line for the person who watches (rank 0) and for the log."""
    message = shown(message)
    if _HANDLERS:
        LOGGER.info(message)
    else:
        print(message, file=sys.stderr)


def alarm(message: str) -> None:
    """One line for the person who watches, from whichever rank it comes."""
    for stream in _TERMINALS:
        print(shown(message), file=stream, flush=True)


def terminal() -> IO[str]:
    """Where rank 0 speaks."""
    streams = [h.stream for h in _HANDLERS if type(h) is logging.StreamHandler]
    return streams[0] if streams else sys.stderr


def is_terminal() -> bool:
    """Whether somebody watches live; NO_COLOR and dumb terminals get plain lines."""
    return terminal().isatty() and os.environ.get("TERM", "") != "dumb" and "NO_COLOR" not in os.environ
