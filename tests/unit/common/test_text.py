"""What a terminal would obey is shown."""

import pytest

from gpt1_ds.common import log
from gpt1_ds.common.text import shown


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\rb\x9b31m\x7f", r"a\rb\x9b31m\x7f"),
        ("abc\u202edcba", r"abc\u202edcba"),
        ("\ud800", r"\ud800"),
        ("two\nlines,\ta tab, d\u00e9j\u00e0\u00a0vu, \u4e2d\u6587 \U0001f468\u200d\U0001f469", None),
    ],
)
def test_escapes_are_shown_and_text_stays(text: str, seen: str | None) -> None:
    assert shown(text) == (text if seen is None else seen)
    shown(text).encode()


def test_what_is_said_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    log.say("folder\x1b[2J: damaged")
    assert capsys.readouterr().err == "folder\\x1b[2J: damaged\n"
