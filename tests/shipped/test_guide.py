"""`gpt1-ds guide`."""

from __future__ import annotations

import pydoc
import re
import sys

import pytest

from gpt1_ds.commands import guide
from tests.helpers.program import assert_refused


def test_all_are_listed_with_a_line_each(gpt1) -> None:  # type: ignore[no-untyped-def]
    listed = gpt1("guide").out.splitlines()
    assert [line.split()[0] for line in listed[: len(guide.NAMES)]] == list(guide.NAMES)
    assert all(len(line) <= 132 and line.endswith(".") for line in listed[: len(guide.NAMES)])


@pytest.mark.parametrize("name", guide.NAMES)
def test_one_is_printed(gpt1, name: str) -> None:  # type: ignore[no-untyped-def]
    printed = gpt1("guide", name)
    assert printed.code == 0
    assert printed.out == guide.text(name)


def test_a_wrong_name_is_answered_with_the_right_one(gpt1) -> None:  # type: ignore[no-untyped-def]
    assert_refused(gpt1("guide", "pretrainin"), "there is no pretrainin; did you mean pretraining?")
    assert_refused(gpt1("guide", "xyz"), "there is no xyz; choose concepts, your-text, ")


def test_a_terminal_gets_pages(gpt1, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    shown: list[str] = []
    monkeypatch.setattr(pydoc, "pager", shown.append)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    assert gpt1("guide", "faults").out == ""
    (page,) = (re.sub(r"\x1b\[[\d;]*m", "", one) for one in shown)
    title = guide.text("faults").splitlines()[0]
    assert title.removeprefix("# ") in page
    assert not re.search(r"^#|\]\(|^```|\|---", page, re.MULTILINE), "no Markdown is left"
    assert max(map(len, page.splitlines())) <= 100
