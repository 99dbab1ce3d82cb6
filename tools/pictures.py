"""The two pictures of the README, from a run of the quickstart: its terminal and its page.

    python tools/pictures.py QUICKSTART OUT

QUICKSTART is the folder that tools/quickstart.sh made. OUT gets terminal.svg, drawn by rich from what the run said (its
first and last lines), and page.png, a screenshot of its report page by chromium.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import read_json
from gpt1_ds.common.rundir import RunDir
from tools.mistakes import told

COLUMNS = 104
FIRST, LAST = 8, 6  # lines of the terminal
WINDOW = (1280, 1180)  # pixels of the page
SAID = re.compile(r"^\S+ \S+ rank 0 INFO gpt1_ds: (.*)$", re.MULTILINE)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")


def said(run: RunDir) -> list[str]:
    """Returns the lines that the run's rank 0 put on the terminal."""
    lines: list[str] = SAID.findall(run.rank_log(0).read_text())
    if len(lines) <= FIRST + LAST:
        raise UserError(f"{run.path}: said {len(lines)} lines only; name a folder of tools/quickstart.sh that is done")
    return lines


def draw_terminal(run: RunDir, out: Path) -> None:
    lines = said(run)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    console.print(f"[bold]$ {read_json(run.environment)['command']}[/]")
    for line in [*lines[:FIRST], "...", *lines[-LAST:]]:
        console.print(line, markup=False, style="bold green" if "held-out" in line else None, no_wrap=True, crop=True)
    without_fonts = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # they need a network
    out.write_text(console.export_svg(title="gpt1-ds", code_format=without_fonts, unique_id="terminal"))


def draw_page(page: Path, out: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise UserError("no chromium here: apt-get install chromium")
    if not page.exists():
        raise UserError(f"{page}: is missing; gpt1-ds report {page.parent} writes it")
    with tempfile.TemporaryDirectory() as profile:
        size = f"--window-size={WINDOW[0]},{WINDOW[1]}"
        command = [browser, *FLAGS, f"--user-data-dir={profile}", size, f"--screenshot={out.resolve()}"]
        subprocess.run([*command, page.resolve().as_uri()], check=True, capture_output=True, timeout=120)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("quickstart", type=Path, help="the folder that tools/quickstart.sh made")
    parser.add_argument("out", type=Path, help="a folder for terminal.svg and page.png")
    options = parser.parse_args(arguments)
    run = RunDir(options.quickstart / "runs" / "tiny_cpu")
    with told():
        options.out.mkdir(parents=True, exist_ok=True)
        draw_terminal(run, options.out / "terminal.svg")
        draw_page(run.report, options.out / "page.png")


if __name__ == "__main__":
    main()
