"""How the library `tokenizers` is called: its errors become one line, and so does training that stops early."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gpt1_ds.common.errors import DataError

FEWEST = 2  # times that a pair of pieces must occur to become one, as in the library's recipe for GPT-2
_STDERR = 2
_ONE_AT_A_TIME = threading.Lock()  # the standard error belongs to the whole process


@contextmanager
def errors_as_line(what: str, way_out: str) -> Iterator[None]:
    """Turns whatever the library raises in here into a DataError: `what` (the library's message); `way_out`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError, DataError):
        raise
    except BaseException as error:
        raise DataError(f"{what} ({' '.join(str(error).split())[:200]}); {way_out}") from None


@contextmanager
def panics_as_line(what: str, way_out: str) -> Iterator[None]:
    """Does the same where the library may panic, which also writes many lines to the standard error. What is written
    there meanwhile is gathered; it is shown afterwards where nothing failed, and else dropped.
    """
    with _ONE_AT_A_TIME, tempfile.TemporaryFile() as gathered:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        real_stderr = os.dup(_STDERR)
        os.dup2(gathered.fileno(), _STDERR)
        try:
            with errors_as_line(what, way_out):
                yield
        except DataError:
            gathered.truncate(0)
            raise
        finally:
            os.dup2(real_stderr, _STDERR)
            os.close(real_stderr)
            if gathered.seek(0, os.SEEK_END):
                gathered.seek(0)
                os.write(_STDERR, gathered.read())


def check_piece_count(wanted: int, most: int) -> None:
    """Raises DataError when the library stopped at `most` pieces in training."""
    if most < wanted:
        raise DataError(f"--vocab-size={wanted} is more than this text supports; use at most {most}, or more text")
