"""The page on a registry: the README, with links that lead to the repository. pyproject.toml has the rest."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]


def absolute(found: re.Match[str]) -> str:
    """A figure as the file itself, any other link as the repository's page of it."""
    image, text, path = found.groups()
    return f"{image}[{text}]({SOURCE}/{'raw' if image else 'blob'}/main/{path})"


setup(
    long_description=re.sub(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)", absolute, (ROOT / "README.md").read_text()),
    long_description_content_type="text/markdown",
)
