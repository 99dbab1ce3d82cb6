"""How a tool ends where somebody has to fix something: one line, and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpt1_ds.common.errors import EXIT_USAGE, UserError


@contextmanager
def told() -> Iterator[None]:
    """Ends the program with the line of a UserError, or with the exit code of a command that has said why it failed."""
    try:
        yield
    except UserError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
