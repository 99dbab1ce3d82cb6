"""The progress bar alone, in a small process on a real terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpt1_ds.common.text import byte_size
from tests.helpers.terminal import BAR, program

DRAW = """
import time
from gpt1_ds.common import log
from gpt1_ds.common.text import byte_size
with log.bar(4 << 20, unit=byte_size) as show:
    log.say("begins")
    show(1 << 20, "[red] 12 tokens")
    time.sleep(2.5)
    log.say("many-" * 30 + "words")
    show(3 << 20)
    log.doing("asks blimp")
    log.say("waits")
    time.sleep({wait})
log.say("ends")
"""


@pytest.mark.parametrize("columns", [80, 30])
def test_its_clock_moves_while_the_work_does_not(columns: int, tmp_path: Path) -> None:
    with program(["-c", DRAW.format(wait=0.5)], tmp_path, columns) as terminal:
        terminal.watch()
        assert terminal.process.wait() == 0
    drawn = [lines[-1] for lines in terminal.moments if "MiB" in lines[-1]]
    assert {"0:00:00", "0:00:01", "0:00:02"} <= {word[:7] for bar in drawn for word in bar.split()} or columns == 30
    assert all(len(bar) <= columns - 3 for bar in drawn)
    assert not [line for lines in terminal.moments for line in lines[:-1] if BAR in line or "MiB" in line]
    assert "".join(terminal.lines) == "begins" + "many-" * 30 + "words" + "waits" + "ends"
    if columns == 80:
        assert any(f"{byte_size(1 << 20)}/{byte_size(4 << 20)}" in bar and "[red] 12 tokens" in bar for bar in drawn)
        assert any(f"{byte_size(3 << 20)}/" in bar and "asks blimp" in bar for bar in drawn)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -15), (signal.SIGINT, -2)], ids=["SIGTERM", "Ctrl-C"])
def test_it_is_removed_when_the_program_is_ended(number: int, code: int, tmp_path: Path) -> None:
    with program(["-c", DRAW.format(wait=60)], tmp_path) as terminal:
        terminal.watch(lambda: "waits" in "".join(terminal.lines) and BAR in terminal.lines[-1])
        os.kill(terminal.process.pid, number)
        terminal.watch()
        assert terminal.process.wait() == code
    assert BAR not in "".join(terminal.lines)
    assert b"\x1b[?25l" not in terminal.raw


def test_it_is_removed_before_the_program_says_that_it_is_terminated(tmp_path: Path) -> None:
    handled = "import signal; from gpt1_ds.common.stop_signals import terminate; signal.signal(15, terminate)"
    with program(["-c", handled + DRAW.format(wait=60)], tmp_path) as terminal:
        terminal.watch(lambda: "waits" in "".join(terminal.lines) and BAR in terminal.lines[-1])
        os.kill(terminal.process.pid, signal.SIGTERM)
        terminal.watch()
        assert terminal.process.wait() == -signal.SIGTERM
    assert "".join(terminal.lines).endswith("waitsgpt1-ds: terminated")


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1", "TERM": "xterm-256color"}], ids=["", "forced colours"])
def test_a_pipe_gets_plain_lines(variables: dict[str, str]) -> None:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", DRAW.replace("2.5", "0").format(wait=0)]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "begins\n" + "many-" * 30 + "words\nwaits\nends\n"
