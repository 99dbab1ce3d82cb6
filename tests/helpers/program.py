"""What the program answered, and how it refuses."""

from __future__ import annotations


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        self.lines = [line for line in err.splitlines() if line]


def assert_refused(result: Result, *words: str, lines: int = 1) -> None:
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
    assert len(result.lines) == lines, result.err
    for word in words:
        assert word in result.err
