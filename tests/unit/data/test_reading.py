from __future__ import annotations

import gzip
import json
import os
import textwrap
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt1_ds.common.errors import DataError
from gpt1_ds.data import chunks, json_lines, reading
from gpt1_ds.data.inputs import find_inputs
from gpt1_ds.data.reading import read_unit
from gpt1_ds.data.units import plan_units
from tests.unit.data.corpora import sentences


def documents(path: Path, unit_bytes: int = 1 << 24, unwrap: bool = False) -> list[str]:
    """The documents of an input, put together again from the pieces of all units."""
    found, text, previous = [], "", ""
    for unit in plan_units(find_inputs([path]), unit_bytes, unwrap):
        for piece in read_unit(unit, unwrap):
            assert piece.previous in (previous, "x")
            text += piece.text
            previous = piece.text[-1:] or previous
            if piece.ends_document:
                found.append(text)
                text, previous = "", ""
    assert text == "", "the last document does not end"
    return found


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def error(path: Path, unit_bytes: int = 1 << 24) -> str:
    with pytest.raises(DataError) as caught:
        documents(path, unit_bytes)
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_bom_and_crlf(tmp_path: Path) -> None:
    content = "\ufeffone\r\ntwo\rthree\n\r\n\ufefffour\r".encode()
    assert documents(write(tmp_path / "a.txt", content)) == ["one\ntwo\rthree\n\n\ufefffour\r"]


@pytest.mark.parametrize("unit_bytes", [3, 10, 1000])
@pytest.mark.parametrize("chunk", [1, 2, 7, 1 << 20])
def test_units_and_chunks_make_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit_bytes: int, chunk: int
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(reading, "PIECE_LETTERS", 5)
    text = "\ufeffcafé \u2581 \U0001f600 naïve\r\n\r\nabcdefghijklm nop\r\n" * 3
    write(tmp_path / "a.txt", text.encode())
    write(tmp_path / "b.jsonl", b"\xef\xbb\xbf" + b"\n".join(json.dumps({"text": text}).encode() for _ in range(3)))
    expected = text.removeprefix("\ufeff").replace("\r\n", "\n")
    assert documents(tmp_path, unit_bytes) == [expected] * 4


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("a \r\né\u2581b"), min_size=1, max_size=60), unit_bytes=st.integers(1, 20))
def test_any_text_is_read_whole(tmp_path: Path, text: str, unit_bytes: int) -> None:
    path = write(tmp_path / "a.txt", text.encode())
    assert documents(path, unit_bytes) == [text.replace("\r\n", "\n")]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_every_kind_of_file(tmp_path: Path, name: str) -> None:
    texts = sentences(20)
    if "jsonl" in name:
        content = "\n\n".join(json.dumps({"id": 1, "text": text}) for text in texts).encode()
    else:
        content = "\n".join(texts).encode()
    if name.endswith("gz"):
        content = gzip.compress(content[:100]) + gzip.compress(content[100:])
    elif name.endswith("zst"):
        content = b"".join(zstandard.ZstdCompressor().compress(part) for part in (content[:100], content[100:]))
    expected = texts if "jsonl" in name else ["\n".join(texts)]
    assert documents(write(tmp_path / name, content), unit_bytes=64) == expected


def test_zstd_with_a_long_window(tmp_path: Path) -> None:
    """As `zstd --long=28` writes it: a window of 256 MB, whatever the file holds."""
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert documents(write(tmp_path / "a.txt.zst", stream.compress(b"a b") + stream.flush())) == ["a b"]


def test_documents_without_text_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", b"")
    write(tmp_path / "b.txt", b"\xef\xbb\xbf")
    write(tmp_path / "c.jsonl", b'{"text": ""}\n\n{"text": "x"}\n')
    write(tmp_path / "d.txt.gz", b"")
    write(tmp_path / "e.txt.zst", b"")
    assert documents(tmp_path) == ["x"]


def test_unwrapping_does_not_depend_on_units(tmp_path: Path) -> None:
    paragraphs = [" ".join(sentences(6, seed=number)) for number in range(40)]
    wrapped = "\r\n\r\n".join(
        textwrap.fill(one, 60, break_on_hyphens=False).replace("\n", "\r\n") for one in paragraphs
    )
    write(tmp_path / "a.txt", wrapped.encode())
    write(tmp_path / "b.jsonl", json.dumps({"text": wrapped}).encode())
    assert documents(tmp_path, 1000, unwrap=True) == ["\n\n".join(paragraphs)] * 2


def test_bytes_that_are_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4)
    path = write(tmp_path / "a.txt", b"12345678\n" + "é".encode() + b"\xff\xfe")
    assert "byte 11 is not UTF-8 (invalid start byte)" in error(path)
    assert "byte 11 is not UTF-8" in error(path, unit_bytes=5)
    assert "byte 2 is not UTF-8 (unexpected end of data)" in error(write(tmp_path / "b.txt", b"12\xe2\x82"))


def test_binary_files(tmp_path: Path) -> None:
    assert "byte 3 is NUL: a binary or UTF-16 file" in error(write(tmp_path / "a.txt", b"abc\0def"))
    assert "is NUL" in error(write(tmp_path / "b.txt", "text".encode("utf-16-le")))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "x"', "Expecting"),
        (b'{"text": 5}', "`text` is int, not a string"),
        (b'["x"]', "list, not an object"),
        (b'"text"', "str, not an object"),
        (b'{"text": "\xff"}', "byte 10 of the line is not UTF-8"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair"),
        (b"[" * 100_000, "line 3"),
    ],
)
@pytest.mark.parametrize("unit_bytes", [5, 1 << 24])
def test_broken_lines(tmp_path: Path, line: bytes, reason: str, unit_bytes: int) -> None:
    path = write(tmp_path / "a.jsonl", b'{"text": "fine"}\n{"text": "fine"}\n' + line + b'\n{"text": "fine"}\n')
    message = error(path, unit_bytes)
    assert "line 3: " in message
    assert reason in message


@pytest.mark.parametrize("unit_bytes", [5, 1 << 24])
def test_a_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit_bytes: int) -> None:
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 1 << 20)
    path = write(tmp_path / "a.jsonl", b'{"text": "fine"}\n' * 2 + b'{"text": "' + b"x" * (3 << 20) + b'"}')
    assert "line 3: a line is longer than 1 MiB" in error(path, unit_bytes)


@pytest.mark.parametrize("cut", [5, 30, -4])
def test_damaged_compression(tmp_path: Path, cut: int) -> None:
    content = "\n".join(sentences(200)).encode()
    assert "damaged gzip file" in error(write(tmp_path / "a.txt.gz", gzip.compress(content)[:cut]))
    assert "damaged zstd file" in error(
        write(tmp_path / "a.txt.zst", zstandard.ZstdCompressor().compress(content)[:cut])
    )


def test_files_that_were_never_compressed(tmp_path: Path) -> None:
    assert "damaged gzip file" in error(write(tmp_path / "a.txt.gz", b"plain text"))
    assert "damaged zstd file" in error(write(tmp_path / "a.txt.zst", b"plain text"))


def test_a_file_that_changes_under_the_reader(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"before")
    (unit,) = plan_units(find_inputs([path]))
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="changed while it was being read"):
        list(read_unit(unit))


MISSING = ['{"text": null}', '{"text": NaN}', '{"text": ""}', '{"words": "x"}']


@pytest.mark.parametrize("line", MISSING)
def test_a_line_without_text_is_left_out_and_counted(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "one"}}\n{line}\n{{"text": " "}}\n')
    counted: list[int] = []
    (unit,) = plan_units(find_inputs([tmp_path / "a.jsonl"]))
    pieces = list(read_unit(unit, left_out=lambda: counted.append(1)))
    assert [piece.text for piece in pieces] == ["one", " "]
    assert len(counted) == 1
