"""Lines as examples: what is split and what is not, and what is said of a line that is none."""

import json
import tracemalloc
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.config import TaskConfig, load
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.kinds import Choice, Classification
from gpt1_ds.tasks.lines import LONGEST, LineReader, choose_format, read_texts
from gpt1_ds.tasks.rows import BadRowError

SINGLE = Classification("cola", "single", ("0", "1"), ("matthews",))
PAIR = Classification("rte", "pair", ("entailment", "not_entailment"), ("accuracy",))
COPA = Choice("copa", "choice", ("0", "1"), ("accuracy",))
CLOZE = Choice("story_cloze", "choice", ("1", "2"), ("accuracy",))


def reader(task: Task, format: str) -> LineReader:
    return LineReader(task, section(task.name), format)  # type: ignore[arg-type]


def section(name: str) -> TaskConfig:
    config = load([], [f"task.name={name}", "task.path=x"]).task
    assert config is not None
    return config


def test_a_text_is_the_whole_line() -> None:
    example = reader(SINGLE, "text").example(b'\xef\xbb\xbf "a"\tb, \xc3\xa9 \r', 1)
    assert example.texts == ('"a"\tb, é',)
    assert (example.choices, example.label, example.score) == ((), None, None)
    assert reader(SINGLE, "text").example(b'{"text": 1}', 2).texts == ('{"text": 1}',)
    with pytest.raises(BadRowError, match="2 fields where 1 is expected: text"):
        reader(SINGLE, "tsv").example(b"a\tb", 1)


def test_fields_lie_between_tabs() -> None:
    assert reader(PAIR, "tsv").example(b'"a, b\t c" ', 1).texts == ('"a, b', 'c"')
    example = reader(COPA, "tsv").example(b"It rained.\teffect\tWe got wet.\tWe ate.", 1)
    assert example.texts == ("It rained.", "What happened as a result?")
    assert example.choices == ("We got wet.", "We ate.")
    assert reader(CLOZE, "tsv").example(b"One. Two.\tThree.\tFour.", 1).choices == ("Three.", "Four.")
    with pytest.raises(DataError, match="rte: reads text, text2; use --format tsv or jsonl"):
        reader(PAIR, "text")


def test_json_lines_name_them() -> None:
    line = {"id": 7, "text2": "cause", "choices": ["a", "b"], "text": "x\ty", "label": "9"}
    example = reader(COPA, "jsonl").example(json.dumps(line).encode(), 1)
    assert example.texts == ("x\ty", "What was the cause of this?")
    assert example.choices == ("a", "b")
    assert example.label is None


@pytest.mark.parametrize(
    ("task", "format", "line", "says"),
    [
        (SINGLE, "text", b" \t ", "is empty"),
        (SINGLE, "text", b"a\xff", "bytes that are not UTF-8"),
        (SINGLE, "text", b"a\0b", "NUL"),
        (SINGLE, "text", b"x" * (LONGEST + 1), f"longer than {LONGEST} bytes"),
        (PAIR, "tsv", b"one", "1 field where 2 are expected: text, text2"),
        (PAIR, "tsv", b"a\tb\tc", "3 fields where 2"),
        (PAIR, "tsv", b" \t ", "is empty"),
        (COPA, "tsv", b"a\tcause\tb", "3 fields where 4 are expected: text, text2, choice 0, choice 1"),
        (COPA, "tsv", b"a\tcause\tb\t", "choice 2 is missing"),
        (COPA, "jsonl", b'{"text": "a", "text2": "b", "choices": ["c"]}', "1 choices where 2"),
        (COPA, "jsonl", b'{"text": "a", "text2": "b"}', "choices is no list"),
        (PAIR, "jsonl", b'{"text": "a"}', "text2 is missing"),
        (PAIR, "jsonl", b'{"text": "a", "text2": null}', "text2 is missing"),
        (PAIR, "jsonl", b'{"text": NaN, "text2": "b"}', "text is missing"),
        (PAIR, "jsonl", b'{"text": "a", "text2": "\\ud800"}', "text2 holds"),
        (PAIR, "jsonl", b'{"a": "b", "c": 1}', "text is missing; the keys of this object are a, c"),
        (PAIR, "jsonl", b"{}", "text is missing; the keys of this object are none"),
        (PAIR, "jsonl", b'["a", "b"]', "not a JSON object"),
        (PAIR, "jsonl", b"a\tb", "not JSON"),
        (PAIR, "jsonl", b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_example(task: Task, format: str, line: bytes, says: str) -> None:
    with pytest.raises(BadRowError, match=says):
        reader(task, format).example(line, 2)


def test_the_format_shows() -> None:
    assert choose_format(SINGLE, "", b"a\tb") == "text"
    assert choose_format(PAIR, "x.txt", b"a\tb") == "tsv"
    assert choose_format(SINGLE, "x.tsv", b"a") == "tsv"
    assert choose_format(PAIR, "x.JSONL", b"a\tb") == "jsonl"
    assert choose_format(SINGLE, "", b'\xef\xbb\xbf{"text": "a"}') == "jsonl"
    assert choose_format(SINGLE, "", b'{"review": "a"}') == "jsonl", "its braces and keys are no text"
    assert choose_format(SINGLE, "", b'["a"]') == "text"
    assert choose_format(SINGLE, "", b"\xff") == "text"
    with pytest.raises(DataError, match=r"x.csv: CSV is not read"):
        choose_format(SINGLE, "x.csv", b"a")


def test_of_a_line_without_an_end_little_is_held(tmp_path: Path) -> None:
    """As /dev/zero has it, or a pipe that no line feed comes from."""
    with open(tmp_path / "endless", "wb") as file:
        file.truncate(64 * LONGEST)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=f"endless line 1: is longer than {LONGEST} bytes"):
            read_texts(tmp_path / "endless")
        assert tracemalloc.get_traced_memory()[1] < 8 * LONGEST
    finally:
        tracemalloc.stop()
    for end in (b"\n", b"\r\n"):
        (tmp_path / "longest").write_bytes(b"x" * (LONGEST - 1) + end + b"next\n")
        assert [len(text) for text in read_texts(tmp_path / "longest")] == [LONGEST - 1, 4]
