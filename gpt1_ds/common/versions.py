"""Which version of a package is installed, and which code of this one."""

from __future__ import annotations

import hashlib
import importlib.metadata
from functools import cache
from pathlib import Path


@cache
def installed(package: str) -> str | None:
    """Returns the version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def source_hash(*folders: str) -> str:
    """Returns the first 16 hex digits of the sha256 of this package's Python files and their names; with `folders` of
    those alone.
    """
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(path for folder in folders or ("",) for path in (package / folder).rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]
