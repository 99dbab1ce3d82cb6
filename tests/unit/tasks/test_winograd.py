"""Files of Winograd schemas: blocks of four lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.winograd import read_schemas, substituted

BLOCK = " The cup broke  as [MASK]  fell . \n[MASK]\n the cup , Bob \n Bob \n"


def read(folder: Path, text: str, name: str = "pdp"):  # type: ignore[no-untyped-def]
    (folder / "pdp.txt").write_text(text)
    return read_schemas(name, folder / "pdp.txt")


def test_blanks_are_brought_into_order(tmp_path: Path) -> None:
    first, second = read(tmp_path, f"\ufeff{BLOCK}\n\n{BLOCK.replace('fell .', '.')}")
    assert (first.texts, first.choices, first.label) == (("The cup broke as", " fell ."), ("the cup", "Bob"), "1")
    assert second.texts == ("The cup broke as", ".")
    assert substituted(first, "The old cup") == ("The cup broke as the old cup", " fell .")
    assert substituted(first, "Theo") == ("The cup broke as Theo", " fell .")


def test_a_pronoun_in_its_own_place(tmp_path: Path) -> None:
    (one,) = read(tmp_path, "The heir told Bob he fell.\nhe\nThe heir,Bob\nThe heir\n", "dprd")
    assert (one.texts, one.label) == (("The heir told Bob", " fell."), "0")


@pytest.mark.parametrize(
    ("sentence", "pronoun", "wanted"),
    [
        ("The heir told Bob that his hat fell.", "his", "The heir told Bob that the heir's"),
        ("Bob is dearer than James because its wheels squeak.", "its", "Bob is dearer than James because the heir's"),
        (
            "Sue likes Ann because people relate to her music.",
            "her",
            "Sue likes Ann because people relate to the heir's",
        ),
        ("The cat swam toward Sue and made her gasp.", "her", "The cat swam toward Sue and made the heir"),
        ("John took her to the hospital.", "her", "John took the heir"),
        ("John saw Ann and liked her.", "her", "John saw Ann and liked the heir"),
        ("The heir told Bob that [MASK] hat fell.", "[MASK]", "The heir told Bob that the heir"),
    ],
)
def test_possessive_pronouns(tmp_path: Path, sentence: str, pronoun: str, wanted: str) -> None:
    (one,) = read(tmp_path, f"{sentence}\n{pronoun}\nThe heir,James\nThe heir\n", "dprd")
    upto, behind = substituted(one, "The heir")
    assert upto == wanted
    assert sentence.endswith(behind)
    if wanted.endswith("'s"):
        assert substituted(one, "James")[0].endswith(" James'")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BLOCK + "extra\n", r"pdp.txt line 1: 5 lines where 4 are expected"),
        (f"{BLOCK}\n{BLOCK.replace('[MASK]', 'it', 1)}", r"pdp.txt line 6: \[MASK\] is not in the sentence"),
        (BLOCK.replace(" Bob \n Bob", " Bob \n Tom"), "Tom is none of its candidates; fix this block"),
        (BLOCK.replace(" , Bob", ""), "does not name two candidates or more"),
        ("\n\n", "is empty"),
    ],
)
def test_what_is_no_schema(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read(tmp_path, text)


def test_a_folder_without_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no wsc273.txt; name the folder that holds the file of wsc273"):
        read_schemas("wsc273", tmp_path)
