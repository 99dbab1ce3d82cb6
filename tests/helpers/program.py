"""How the program refuses."""

from __future__ import annotations

from tools.cluster import Result


def assert_refused(result: Result, *texts: str, lines: int = 1) -> None:
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
    assert len(result.lines) == lines, result.err
    for text in texts:
        assert text in result.err
