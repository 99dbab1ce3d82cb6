"""Addresses that fsspec knows. Its file system in memory, and a server on this machine, stand for a cloud."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.remote import without_secrets
from gpt1_ds.data.build import build
from gpt1_ds.data.inputs import find_inputs
from gpt1_ds.data.reading import read_unit
from gpt1_ds.data.units import plan_units
from tests.unit.data.corpora import write_corpus
from tests.unit.data.formats import DOCUMENTS, write_jsonl, write_parquet


def upload(folder: Path, to: str) -> None:
    system = fsspec.filesystem("memory")
    for path in folder.rglob("*.*"):
        system.pipe(f"{to}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def test_remote_files_give_the_bytes_of_local_ones(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus")
    write_parquet(folder / "table.parquet", DOCUMENTS[20:40])
    write_jsonl(folder / "zipped.jsonl.gz", DOCUMENTS[:20])
    upload(folder, "/bucket/corpus")
    for number, source in enumerate((folder, "memory://bucket/corpus", f"file://{folder}")):
        build([source], tokenizer_folder, tmp_path / f"{number}", workers=1, unit_bytes=2000)
    contents = [
        {path.name: path.read_bytes() for path in (tmp_path / f"{number}").glob("*.*") if path.suffix != ".json"}
        for number in range(3)
    ]
    assert contents[0] == contents[1] == contents[2]


def test_what_a_remote_folder_leaves_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    system = fsspec.filesystem("memory")
    for name in ("a.txt", "more/b.json", ".git/c.md"):
        system.pipe(f"/mixed/{name}", b"x")
    (found,) = find_inputs(["memory://mixed"])
    assert [file.name for file in found.files] == ["a.txt"]
    assert capsys.readouterr().err == "memory://mixed: leaves out 1 file of other kinds, such as more/b.json\n"


def test_a_remote_file_that_changes_is_noticed(tmp_path: Path) -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/bucket/a.txt", b"one")
    units = plan_units(find_inputs(["memory://bucket/a.txt"]))
    system.pipe("/bucket/a.txt", b"two")
    with pytest.raises(DataError, match=r"memory:///bucket/a\.txt: changed while it was being read"):
        list(read_unit(units[0]))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("memory://nowhere/a.txt", "memory://nowhere/a.txt: no such file or folder"),
        ("strange://a/b.txt", "strange://a/b.txt: Protocol not known"),
        ("https://user:secret@host.invalid/a.txt?signature=secret", "https://host.invalid/a.txt: "),
    ],
)
def test_addresses_that_cannot_be_read(address: str, message: str) -> None:
    from gpt1_ds.common.errors import UserError

    with pytest.raises(UserError) as caught:
        find_inputs([address])
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_signed_address_is_read_by_its_name(tmp_path: Path) -> None:
    """A name is what stands before the signature, in which there may be a slash."""
    (tmp_path / "a.txt").write_text("signed text")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (found,) = find_inputs([f"http://127.0.0.1:{server.server_port}/a.txt?X-Sig=ab/cd"])
        (unit,) = plan_units([found])
        assert [file.name for file in found.files] == ["a.txt"]
        assert [piece.text for piece in read_unit(unit)] == ["signed text"]
        server.shutdown()


def test_secrets_are_not_shown() -> None:
    assert without_secrets("sftp://user:pa@ss@host/x@y.txt") == "sftp://host/x@y.txt"
    assert without_secrets("s3://key:secret@bucket/a.txt?token=x") == "s3://bucket/a.txt"
    assert without_secrets("/local/what?.txt") == "/local/what?.txt"
