"""Rows of files: quotes, BOM, line ends, NUL bytes, and what is said about files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.published_files import copa_xml, race_folder
from gpt1_ds.tasks.tables import Table, open_table


def table(path: Path, content: str | bytes, **options: str) -> Table:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_table(path, **options)  # type: ignore[arg-type]


def values(table: Table) -> list[list[str]]:
    return [list(row.values.values()) for row in table.rows]


def refused(path: Path, content: str | bytes, **options: str) -> str:
    with pytest.raises(DataError) as caught:
        list(table(path, content, **options).rows)
    (line,) = caught.value.problems
    assert str(path) in line
    return line


def test_quotes_are_letters_in_tsv(tmp_path: Path) -> None:
    text = 'a\tb\n"open\t1\nx"" y\t"2\n"z"\t3\n'
    assert values(table(tmp_path / "x.tsv", text)) == [['"open', "1"], ['x"" y', '"2'], ['"z"', "3"]]
    assert values(table(tmp_path / "x.txt", text)) == values(table(tmp_path / "x.tsv", text))


def test_quotes_enclose_fields_in_csv(tmp_path: Path) -> None:
    found = table(tmp_path / "x.csv", 'a,b\n"one, ""two""\nlines",1\nplain,2\n')
    rows = list(found.rows)
    assert [row.place for row in rows] == ["line 2", "line 4"], "the line a record begins on"
    assert rows[0].values == {"a": 'one, "two"\nlines', "b": "1"}


def test_quoting_can_be_set(tmp_path: Path) -> None:
    assert values(table(tmp_path / "x.tsv", 'a\tb\n"p\tq"\t1\n', quoting="csv")) == [["p\tq", "1"]]
    assert values(table(tmp_path / "x.csv", 'a,b\n"p,q\n', quoting="none")) == [['"p', "q"]]


@pytest.mark.parametrize("name", ["x.tsv", "x.csv", "x.jsonl", "x.json"])
def test_a_bom_is_no_letter(name: str, tmp_path: Path) -> None:
    text = {"x.tsv": "a\tb\n1\t2\n", "x.csv": "a,b\n1,2\n", "x.jsonl": '{"a": "1", "b": "2"}\n'}.get(name)
    found = table(tmp_path / name, "\ufeff" + (text or '[{"a": "1", "b": "2"}]'))
    assert found.columns == ("a", "b")
    assert values(found) == [["1", "2"]]


def test_line_ends(tmp_path: Path) -> None:
    """CRLF ends a line; a lone CR, U+2028, U+0085 and a form feed are text."""
    text = "a\tb\r\n1\u2028\u0085\t2\r3\r\n\r\n4\x0c\t5"
    rows = list(table(tmp_path / "x.tsv", text).rows)
    assert [list(row.values.values()) for row in rows] == [["1\u2028\u0085", "2\r3"], ["4\x0c", "5"]]
    assert [row.place for row in rows] == ["line 2", "line 4"]


def test_bad_rows_are_rows(tmp_path: Path) -> None:
    found = table(tmp_path / "x.tsv", b"a\tb\n1\t2\t3\n4\n5\t\x006\n7\t\xff8\n9\t10\n")
    assert [(row.place, row.problem) for row in found.rows] == [
        ("line 2", "3 columns where 2 are expected"),
        ("line 3", "1 columns where 2 are expected"),
        ("line 4", "holds a NUL byte"),
        ("line 5", "holds bytes that are not UTF-8"),
        ("line 6", ""),
    ]


def test_json_lines(tmp_path: Path) -> None:
    found = table(tmp_path / "x.jsonl", '{"a": 1}\n\nnonsense\n[1]\n{"a": 2}\n')
    assert found.columns == ("a",)
    problems = [(row.place, row.problem.partition(" (")[0]) for row in found.rows]
    assert problems == [
        ("line 1", ""),
        ("line 3", "not JSON"),
        ("line 4", "not an object with a key per column"),
        ("line 5", ""),
    ]


def test_json_of_either_shape(tmp_path: Path) -> None:
    listed, named = '[{"a": "x"}, {"a": "y"}]', '{"0": {"a": "x"}, "1": {"a": "y"}}'
    assert values(table(tmp_path / "l.json", listed)) == values(table(tmp_path / "n.json", named)) == [["x"], ["y"]]


@pytest.mark.parametrize("name", ["x.tsv", "x.csv", "x.jsonl"])
@pytest.mark.parametrize("content", ["", "\ufeff", "\n\n"])
def test_empty_files(name: str, content: str, tmp_path: Path) -> None:
    assert "is empty" in refused(tmp_path / name, content)


def test_a_header_alone_is_empty(tmp_path: Path) -> None:
    assert "is empty" in refused(tmp_path / "x.tsv", "a\tb\n")
    assert "is empty" in refused(tmp_path / "x.json", "[]")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.tsv", "a\tb\ta\n1\t2\t3\n", "its header names a twice"),
        ("x.csv", 'a,b\n"never closed,1\n', "not readable as CSV"),
        ("x.csv", 'a,b\n"closed" early,1\n', "line 2: not readable as CSV"),
        ("x.tsv", "a\tb\n".encode("utf-16"), "is UTF-16; save it as UTF-8"),
        ("x.json", '{"a": 1}\n{"a": 2}\n', "call it .jsonl"),
        ("x.json", "[" * 100_000, "not readable as JSON"),
        ("x.json", "3", "neither a list nor a mapping"),
        ("x.doc", "a", "of no known kind"),
    ],
)
def test_files_that_cannot_be_read(name: str, content: str | bytes, words: str, tmp_path: Path) -> None:
    assert words in refused(tmp_path / name, content)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file; look at task\.path"):
        open_table(tmp_path / "x.tsv")


def test_race_passages(tmp_path: Path) -> None:
    folder = tmp_path / "high"
    folder.mkdir()
    passage = {"article": "a", "questions": ["q", "r"], "options": [["1", "2"], ["3", "4"]], "answers": ["A", "B"]}
    (folder / "10.txt").write_text(json.dumps(passage))
    (folder / "2.txt").write_text(json.dumps({**passage, "answers": ["A"]}))
    (folder / "3.txt").write_text("{")
    rows = list(race_folder(folder).rows)
    assert [row.place for row in rows] == ["2.txt", "3.txt", "10.txt question 1", "10.txt question 2"]
    assert all(row.problem.startswith("damaged") for row in rows[:2])
    assert rows[3].values["group"] == "high"
    assert rows[3].values["options"] == ["3", "4"]
    with pytest.raises(DataError, match="holds no passage"):
        race_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<copa-corpus/>", "is empty"),
        ("<copa-corpus><item>", "not readable as XML"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><x><item>&a;</item></x>', "defines XML entities"),
    ],
)
def test_copa_files_that_cannot_be_read(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text(text)
    with pytest.raises(DataError, match=words):
        copa_xml(tmp_path / "x.xml")


def test_copa_items_that_are_not_whole(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text("<c><item id='7' asks-for='cause'><p>x</p><a1>y</a1></item></c>")
    (row,) = copa_xml(tmp_path / "x.xml").rows
    assert (row.place, row.problem) == ("item 7", "needs one <p>, one <a1> and one <a2>")


def test_a_cell_may_be_a_book(tmp_path: Path) -> None:
    book = "word, " * 50_000
    assert values(table(tmp_path / "x.csv", f'text,label\n"{book}",1\n')) == [[book, "1"]]
