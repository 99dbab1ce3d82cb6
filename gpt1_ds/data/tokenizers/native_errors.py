"""Failures of the `tokenizers` library as one line. Its panics are no Exceptions, and write on the terminal."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gpt1_ds.common.errors import DataError

_STDERR = 2
_ONE_AT_A_TIME = threading.Lock()  # the standard error belongs to the whole process


@contextmanager
def as_line(what: str, way_out: str) -> Iterator[None]:
    """Raises DataError, `what` and `way_out` around the first words of it, for whatever the library raises in here."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError, DataError):
        raise
    except BaseException as error:
        raise DataError(f"{what} ({' '.join(str(error).split())[:200]}); {way_out}") from None


@contextmanager
def quiet_as_line(what: str, way_out: str) -> Iterator[None]:
    """The same for what may panic. What is written to the standard error meanwhile comes after it, unless it fails."""
    with _ONE_AT_A_TIME, tempfile.TemporaryFile() as held:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        kept = os.dup(_STDERR)
        os.dup2(held.fileno(), _STDERR)
        try:
            with as_line(what, way_out):
                yield
        except DataError:
            held.truncate(0)
            raise
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)
            if held.seek(0, os.SEEK_END):
                held.seek(0)
                os.write(_STDERR, held.read())
