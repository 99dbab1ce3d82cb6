"""Pages from templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpt1_ds import __version__
from gpt1_ds.common.errors import UserError


def render(name: str, extra: str, **values: Any) -> str:
    """The page that a template of this folder makes of `values`. Raises UserError where jinja2 is not installed, which
    comes with `extra`.
    """
    try:
        from jinja2 import Environment, FileSystemLoader
    except ImportError:
        raise UserError(f"jinja2 is not installed: pip install 'gpt1-ds[{extra}]'") from None
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(name).render(version=__version__, **values)
