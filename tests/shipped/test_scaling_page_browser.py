"""The page of a scaling study in a real browser: nothing on its console, every figure drawn."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpt1_ds.report.scaling_page import FIGURES, write_scaling_report
from tests.helpers.scaling_study import make_study

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr"),
)


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        assert "CI" not in os.environ, "CI has a browser: apt-get install chromium"
        pytest.skip("no chromium here: apt-get install chromium")
    return found


def visit(browser: str, page: Path, *action: str) -> tuple[str, list[str]]:
    """(the document after loading, lines of its console)."""
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [browser, *FLAGS, profile, *action, page.resolve().as_uri()]
    home = {**os.environ, "HOME": str(page.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=home)
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
def test_no_console_error_and_every_figure(browser: str, tmp_path: Path) -> None:
    page = write_scaling_report(make_study(tmp_path / "study"))
    document, console = visit(browser, page, "--dump-dom")
    assert console == []
    assert set(re.findall(r'<figure id="(\w+)"><svg', document)) == set(FIGURES)
    assert document.count("</svg>") == len(FIGURES)
    picture = tmp_path / "page.png"
    visit(browser, page, f"--screenshot={picture}", "--window-size=1200,6000")
    assert picture.stat().st_size > 200_000, "more than an empty page"


def test_the_console_would_tell(browser: str, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text("<script>undefined_name()</script>")
    _, console = visit(browser, page, "--dump-dom")
    assert len(console) == 1
    assert "undefined_name" in console[0]
