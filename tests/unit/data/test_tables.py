"""Parquet files and saved datasets give the shards that text gives, and are refused in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.build import build
from gpt1_ds.data.inputs import find_inputs
from gpt1_ds.data.reading import read_unit
from gpt1_ds.data.units import plan_units
from tests.unit.data.formats import DOCUMENTS, save_to_disk, write_jsonl, write_parquet


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.*") if path.suffix in (".bin", ".idx")}


@pytest.fixture(scope="module")
def expected(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("text")
    build([write_jsonl(folder / "a.jsonl")], tokenizer_folder, folder / "out", workers=1, validation=0.1)
    return shards(folder / "out")


def two_parquets(folder: Path) -> Path:
    folder.mkdir()
    write_parquet(folder / "part-0.parquet", DOCUMENTS[:90])
    write_parquet(folder / "part-1.parquet", DOCUMENTS[90:])
    return folder


KINDS: dict[str, Callable[[Path], Path]] = {
    "jsonl.gz": lambda folder: write_jsonl(folder / "a.jsonl.gz"),
    "parquet": lambda folder: write_parquet(folder / "a.parquet"),
    "parquets": lambda folder: two_parquets(folder / "many"),
    "saved": lambda folder: save_to_disk(folder / "saved"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("workers", "unit_bytes"), [(1, 1 << 24), (2, 3000)])
def test_every_kind_gives_the_same_bytes(
    kind: str, workers: int, unit_bytes: int, expected: dict[str, bytes], tokenizer_folder: Path, tmp_path: Path
) -> None:
    source = KINDS[kind](tmp_path)
    build([source], tokenizer_folder, tmp_path / "out", workers=workers, validation=0.1, unit_bytes=unit_bytes)
    assert shards(tmp_path / "out") == expected


@pytest.mark.parametrize("kind", ["parquet", "saved"])
def test_large_tables_are_shared_by_units(kind: str, tmp_path: Path) -> None:
    units = plan_units(find_inputs([KINDS[kind](tmp_path)]), unit_bytes=3000)
    assert len(units) > 2
    texts = [piece.text for unit in units for piece in read_unit(unit)]
    assert texts == [text.removeprefix("\ufeff").replace("\r\n", "\n") for text in DOCUMENTS if text]


def test_another_key_gives_the_same_tokens(expected: dict[str, bytes], tokenizer_folder: Path, tmp_path: Path) -> None:
    for number, source in enumerate(
        (write_jsonl(tmp_path / "a.jsonl", key="body"), write_parquet(tmp_path / "a.parquet", key="body"))
    ):
        out = tmp_path / f"out{number}"
        build([source], tokenizer_folder, out, workers=1, validation=0.1, text_key="body")
        assert shards(out) == expected


def test_rows_without_a_value_hold_no_document(tmp_path: Path) -> None:
    (unit,) = plan_units(find_inputs([write_parquet(tmp_path / "a.parquet", ["a", None, "b"])]))
    assert [piece.text for piece in read_unit(unit)] == ["a", "b"]


def test_a_table_without_rows_holds_no_document(tmp_path: Path) -> None:
    empty = pyarrow.table({"text": pyarrow.array([], pyarrow.string())})
    pyarrow.parquet.write_table(empty, tmp_path / "a.parquet", use_dictionary=False)
    assert [piece for unit in plan_units(find_inputs([tmp_path / "a.parquet"])) for piece in read_unit(unit)] == []


def test_a_saved_dataset_of_several_splits(tmp_path: Path) -> None:
    one = datasets.Dataset.from_dict({"text": ["a"]})
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "both")
    (found,) = find_inputs([tmp_path / "both"])
    assert Path(found.files[0].path).parent.name == "train"
    datasets.DatasetDict({"dev": one, "test": one}).save_to_disk(tmp_path / "none")
    with pytest.raises(DataError, match=r"none: has no split train; name one: .*none/dev, .*none/test"):
        find_inputs([tmp_path / "none"])


def refused(source: Path | str, **options: str) -> str:
    def read() -> None:
        for unit in plan_units(find_inputs([source], **options)):
            list(read_unit(unit))

    with pytest.raises(DataError) as caught:
        read()
    (line,) = caught.value.problems
    assert "\n" not in line
    return line


def test_what_is_refused(tmp_path: Path) -> None:
    good = write_parquet(tmp_path / "a.parquet")
    assert "a.parquet: no column 'body'; it has n, text; name the one with the text" in refused(good, text_key="body")
    assert "a.parquet: column 'n' is int64, not text; it has n, text" in refused(good, text_key="n")
    saved = save_to_disk(tmp_path / "saved", shards=1)
    assert "no column 'body'; it has text" in refused(saved, text_key="body")
    (arrow,) = saved.glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:3000])
    assert "damaged Arrow file" in refused(saved)
    (saved / "state.json").write_text("{")
    assert "state.json: damaged" in refused(saved)


@pytest.mark.parametrize("library", ["pyarrow", "datasets"])
def test_a_library_that_cannot_be_imported_says_why(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{library}.py").write_text("raise ImportError('it requires NumPy 2.0 or newer, found 1.26.0')\n")
    write_parquet(tmp_path / "a.parquet")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, library)
    told = refused(tmp_path / "a.parquet" if library == "pyarrow" else "hf:a")
    assert f"{library} cannot be imported: it requires NumPy 2.0 or newer, found 1.26.0" in told


def test_one_text_for_many_rows(tmp_path: Path) -> None:
    """A few bytes name a text of megabytes in every row: it is read row by row, or refused where it is too much."""
    text, path = "word " * 1000, tmp_path / "a.parquet"

    def write(rows: int, text: str) -> None:
        indices = pyarrow.array([None, *[0] * (rows - 1)], pyarrow.int32())
        column = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array([text]))
        table, settings = pyarrow.table({"text": column}), {"dictionary_pagesize_limit": 1 << 30}
        pyarrow.parquet.write_table(table, path, compression="zstd", **settings)
        assert path.stat().st_size < 5000

    write(40, text)
    (unit,) = plan_units(find_inputs([path]))
    assert [piece.text for piece in read_unit(unit)] == [text] * 39
    write(600, text * 1000)
    assert "512 rows of column 'text' expand to 2,555,000,000 bytes of text; at most 1,073,741,824" in refused(path)


@pytest.mark.parametrize("where", ["footer", "page", "empty", "bytes"])
def test_damaged_parquet(where: str, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", rows=50)
    content = bytearray(path.read_bytes())
    if where == "footer":
        content = content[: len(content) // 2]
    elif where == "page":
        group = pyarrow.parquet.read_metadata(path).row_group(2).column(1)
        content[group.data_page_offset : group.data_page_offset + 200] = bytes(200)
    elif where == "empty":
        content = bytearray()
    else:
        table = pyarrow.table({"text": pyarrow.array([b"\xff\xfe"], pyarrow.binary()).view(pyarrow.string())})
        pyarrow.parquet.write_table(table, path)
        content = bytearray(path.read_bytes())
    path.write_bytes(content)
    assert "not UTF-8" in refused(path) if where == "bytes" else "damaged Parquet file" in refused(path)
