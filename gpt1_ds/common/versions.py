"""Which version of a package is installed."""

from __future__ import annotations

import importlib.metadata


def installed(package: str) -> str | None:
    """Returns the version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
