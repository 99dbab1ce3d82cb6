"""Every shell script parses, and shellcheck has nothing to say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# a command that may end before it has read all: what writes into its pipe then dies of SIGPIPE, and with pipefail the
# script, too, with 141 and no message, but only where much is written
EARLY = re.compile(
    r"""(?<!\|)\|&?\s*(
        head\b | read\b | cmp\b
        | [ef]?grep\b(?=[^|;&]*\s(-\w*[qlm]|--quiet|--silent|--max-count|--files-with))
        | sed\b[^|]*?[\d/{;'"\s][qQ]\s*[;}'"\d] | sed\s+\d*[qQ]\b
        | awk\b[^|]*\bexit\b
    )""",
    re.VERBOSE,
)
PATTERNS = ("launch/*.sh", "launch/*.sbatch", "tools/*.sh", "tools/gpu/*.sh", ".ci/run")
SCRIPTS = [script for pattern in PATTERNS for script in ROOT.glob(pattern)]


def test_scripts_parse() -> None:
    assert len(SCRIPTS) > 10
    for script in SCRIPTS:
        subprocess.run(["bash", "-n", str(script)], check=True)


def early_readers(text: str) -> list[str]:
    """Lines in which a reader of a pipe may close it early; lines that end with a backslash or a pipe are joined."""
    whole = re.sub(r"\\\n|(?<=\|)\s*\n\s*", " ", text)
    return [line for line in whole.splitlines() if EARLY.search(re.sub(r"(^|\s)#.*", "", line))]


@pytest.mark.parametrize(
    ("line", "early"),
    [
        ("a | head -n 1", True),
        ("a |\n  head", True),
        ("a \\\n  | head", True),
        ("x=$(a | grep -q b)", True),
        ("a | grep -Fxq b && c", True),
        ("a | grep --max-count=1 b", True),
        ("a | egrep -m1 b", True),
        ("a | sed 5q", True),
        ("a | sed -n '/b/{p;q}'", True),
        ("a | awk '{print; exit}'", True),
        ("a | read -r b", True),
        ("head -1 b | sort", False),
        ("a || head -n 1 b", False),
        ("a | grep -c '^quiet'", False),
        ("a | sed -n '1p'", False),
        ("a | sed -n 's/.*q=\\(.*\\)/\\1/p'", False),
        ("a | awk 'NR == 1'", False),
        ("a | tail -n 1 # as | head -n 1 would close it", False),
        ("mapfile -t b < <(a)", False),
    ],
)
def test_early_readers_are_found(line: str, early: bool) -> None:
    assert bool(early_readers(line)) == early


def test_no_reader_of_a_pipe_closes_it_early() -> None:
    more = [*ROOT.glob("launch/containers/*"), *ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("tools/fakecuda*")]
    for script in [*SCRIPTS, *(path for path in more if path.is_file())]:
        assert early_readers(script.read_text()) == [], script


def test_shellcheck_is_content() -> None:
    if shutil.which("shellcheck") is None:
        assert "CI" not in os.environ, "CI has shellcheck"
        pytest.skip("needs shellcheck")
    arguments = ["shellcheck", "--external-sources", *(str(path.relative_to(ROOT)) for path in SCRIPTS)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_launch_scripts_are_read_in_a_minute() -> None:
    for script in (path for path in (ROOT / "launch").rglob("*") if path.is_file() and path.suffix != ".pyc"):
        assert script.suffix == ".md" or len(script.read_text().splitlines()) < 60, script
