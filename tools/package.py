"""The source archive and the wheel that a registry takes: python tools/package.py OUT

Their page on the registry is the README, whose links lead to the repository there. It is built in a copy: building
writes beside the sources.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("gpt1_ds", "configs", "launch", "pyproject.toml", "README.md", "LICENSE")


def with_absolute_links(page: str, source: str) -> str:
    """Returns a page in Markdown with the links of the repository `source` in the place of relative ones: a figure as
    the file itself, any other link as the repository's page of it.
    """

    def absolute(found: re.Match[str]) -> str:
        image, text, path = found.groups()
        return f"{image}[{text}]({source}/{'raw' if image else 'blob'}/main/{path})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)", absolute, page)


def build(out: Path) -> None:
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in PARTS:
            whole = ROOT / name
            if whole.is_dir():
                shutil.copytree(whole, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(whole, copy / name)
        page = copy / "README.md"
        page.write_text(with_absolute_links(page.read_text(), source))
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), folder]
        subprocess.run(command, check=True, stdout=sys.stderr)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *out.glob("gpt1_ds-*")], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="a folder; archives of the same version are replaced")
    build(parser.parse_args().out)
