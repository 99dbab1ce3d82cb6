"""Where files are cut into units."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.data.inputs import find_inputs
from gpt1_ds.data.segments import Unit
from gpt1_ds.data.units import plan_units
from tests.unit.data.test_inputs import fill


def ranges(units: list[Unit]) -> list[list[tuple[str, int, int]]]:
    return [[(Path(s.file.path).name, s.start, s.stop) for s in unit.segments] for unit in units]


def test_large_files_are_cut_at_line_ends_and_small_neighbours_share(tmp_path: Path) -> None:
    fill(tmp_path, {"a.txt": b"12345678\n" * 5, "b.txt": b"1\n", "c.txt": b"2\n", "d.jsonl": b"3\n", "e.txt.gz": b"4"})
    inputs = find_inputs([tmp_path])
    assert ranges(plan_units(inputs, unit_bytes=10)) == [
        [("a.txt", 0, 18)],
        [("a.txt", 18, 36)],
        [("a.txt", 36, 45), ("b.txt", 0, 2)],
        [("c.txt", 0, 2), ("d.jsonl", 0, 2)],
        [("e.txt.gz", 0, 1)],
    ]


def test_units_do_not_mix_inputs(tmp_path: Path) -> None:
    fill(tmp_path, {"a.txt": b"1\n", "b.txt": b"2\n"})
    units = plan_units(find_inputs([tmp_path / "a.txt", tmp_path / "b.txt"]))
    assert [(unit.number, unit.input) for unit in units] == [(0, 0), (1, 1)]


def test_crlf_is_never_cut(tmp_path: Path) -> None:
    content = b"123456\r\n" * 9
    fill(tmp_path, {"a.txt": content})
    for unit_bytes in range(5, 30):
        for unit in plan_units(find_inputs([tmp_path]), unit_bytes):
            assert all(segment.stop % 8 == 0 for segment in unit.segments)


def test_unwrapping_prefers_blank_lines(tmp_path: Path) -> None:
    fill(tmp_path, {"a.txt": b"one\ntwo\nsix\n \r\nthree\nfour\n"})
    inputs = find_inputs([tmp_path])
    assert ranges(plan_units(inputs, unit_bytes=5, unwrap=False))[0] == [("a.txt", 0, 8)]
    assert ranges(plan_units(inputs, unit_bytes=5, unwrap=True))[0] == [("a.txt", 0, 15)]


@pytest.mark.parametrize(
    ("content", "cut", "previous"),
    [
        (b"no line end but spaces", 7, "x"),
        ("é".encode() * 20, 6, "x"),
        (b"12345\r\n" + b"x" * 20, 7, "\n"),
    ],
)
def test_texts_without_line_ends(tmp_path: Path, content: bytes, cut: int, previous: str) -> None:
    fill(tmp_path, {"a.txt": content})
    _, second, *_ = plan_units(find_inputs([tmp_path]), unit_bytes=5)
    assert (second.segments[0].start, second.segments[0].previous) == (cut, previous)
    content[:cut].decode()


@pytest.mark.parametrize(
    ("content", "cut"),
    [
        (b"12345\n\n\t\n67 89", 9),  # after all of the white space
        ("12345\n\u2003\n67 89".encode(), 10),
        (b"12345\n\n \t 67 89", 12),  # no line end stands before other text, but a space after it
        (b"1234\n\n \t \n\n", None),
        (b"1234   ", None),
    ],
)
def test_white_space_is_not_cut_in_two(tmp_path: Path, content: bytes, cut: int | None) -> None:
    fill(tmp_path, {"a.txt": content})
    units = plan_units(find_inputs([tmp_path]), unit_bytes=5)
    assert ranges(units)[0] == [("a.txt", 0, cut or len(content))]


def test_jsonl_is_cut_at_line_ends_only(tmp_path: Path) -> None:
    fill(tmp_path, {"a.jsonl": b'{"text": "a b c d e f"}\n{"text": "g"}'})
    assert ranges(plan_units(find_inputs([tmp_path]), unit_bytes=5)) == [[("a.jsonl", 0, 24)], [("a.jsonl", 24, 37)]]
