"""The README stays short, every guide is found, and pages use the field's words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpt1_ds.commands import guide
from tests.helpers.documents import GUIDES, ROOT

README = (ROOT / "README.md").read_text()
RESULTS = sorted((ROOT / "tools" / "results").rglob("README.md"))
OWN_WORDS = r"verbs?|goes on|go on|passed over|mended|vetoe?d?|processors?|incidents?"


def test_the_readme_is_short_and_names_its_two_commands() -> None:
    assert len(README.splitlines()) <= 150
    for command in ("bash tools/quickstart.sh", "bash tools/test.sh"):
        assert f"```bash\n{command}\n```" in README


def test_every_guide_is_listed_and_linked() -> None:
    assert sorted(guide.NAMES) == [path.stem for path in GUIDES]
    linked = re.findall(r"^\| \[([\w-]+)\]\(gpt1_ds/guides/([\w-]+)\.md\) \|", README, flags=re.MULTILINE)
    assert linked == [(name, name) for name in guide.NAMES], "in the order of the command"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_begins_with_its_title_and_what_it_is_about(page: Path) -> None:
    title, empty, about, after = page.read_text().splitlines()[:4]
    assert title.startswith("# ")
    assert empty == after == ""
    assert about.endswith(".")
    assert len(about) <= 100, "a line of `gpt1-ds guide`"


@pytest.mark.parametrize(
    "page", [*GUIDES, ROOT / "README.md", ROOT / "launch" / "README.md"], ids=lambda page: page.name
)
def test_pages_use_standard_words(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    assert not re.findall(rf"\b(?:{OWN_WORDS})\b", prose, flags=re.IGNORECASE)


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: str(page.parent.relative_to(ROOT)))
def test_a_page_of_results_shows_first_and_is_short(page: Path) -> None:
    """A figure, a sentence that says what came out, a table, the command; all else is on a page of details."""
    text = page.read_text()
    figure, table, command = (text.index(f"\n{start}") for start in ("![", "|", "```bash"))
    assert figure < table < command
    _, _, said = text[figure:table].partition(")\n")
    assert 10 < len(said.split()) <= 70
    prose = re.sub(r"```.*?```|^[|!].*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 350
    assert ("(DETAILS.md)" in text) == (page.parent / "DETAILS.md").exists()
