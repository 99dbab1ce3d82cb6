"""What is said on a terminal that is no longer there."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import pytest

from gpt1_ds.common import log


def test_a_terminal_that_is_closed_does_not_end_a_run(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    terminal = os.fdopen(theirs, "w", buffering=1)
    log.setup(0, tmp_path / "rank-0.log", terminal)
    try:
        print("before", file=log.terminal(), flush=True)
        assert os.read(ours, 100) == b"before\r\n"
        assert log.terminal().isatty()
        os.close(ours)
        print("after", file=log.terminal(), flush=True)
        log.alarm("from any rank")
        log.say("for the log")
    finally:
        log.teardown()
        with contextlib.suppress(OSError):
            terminal.close()
    assert "for the log" in (tmp_path / "rank-0.log").read_text()


def test_a_log_that_does_not_fit_hides_no_error() -> None:
    terminal = io.StringIO()
    log.setup(0, Path("/dev/full"), terminal)
    try:
        log.say("why the run ends")
    finally:
        log.teardown()
    assert terminal.getvalue() == "why the run ends\n"


def test_a_reader_that_is_gone_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`| head` is not a lost terminal; the lines of a run are in its log all the same, each once."""
    reader, writer = os.pipe()
    os.close(reader)
    pipe = os.fdopen(writer, "w", buffering=1)
    log.setup(0, tmp_path / "rank-0.log", pipe)
    try:
        with pytest.raises(BrokenPipeError):
            log.terminal().write("line\n")
        log.say("step 1")
        log.alarm("from any rank")
    finally:
        log.teardown()
        with pytest.raises(BrokenPipeError):
            pipe.close()
    assert capsys.readouterr().err == "", "in a run this is its log"
    assert (tmp_path / "rank-0.log").read_text().count("step 1") == 1
