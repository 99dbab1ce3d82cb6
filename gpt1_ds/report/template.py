"""Pages from templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpt1_ds import __version__


def render(name: str, **values: Any) -> str:
    """Returns the page that a template of this folder makes of `values`."""
    from jinja2 import Environment, FileSystemLoader  # torch needs it, too

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(name).render(version=__version__, **values)
