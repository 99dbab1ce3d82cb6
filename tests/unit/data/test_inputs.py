"""Which files an input has."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.inputs import find_inputs


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_a_folder_gives_its_usable_files_by_path(tmp_path: Path) -> None:
    names = ["b.txt", "a/z.jsonl", "a/y.TXT.gz", "c.jsonl.zst", "SOURCE.md", ".hidden/x.txt", ".x.txt", "d.gz"]
    fill(tmp_path / "books", dict.fromkeys(names, b"x"))
    (found,) = find_inputs([tmp_path / "books"])
    assert found.name == "books"
    assert [file.name for file in found.files] == ["a/y.TXT.gz", "a/z.jsonl", "b.txt", "c.jsonl.zst"]
    assert (found.files[0].format, found.files[0].compression) == (".txt", ".gz")


def test_inputs_keep_their_order(tmp_path: Path) -> None:
    fill(tmp_path, {"b.txt": b"x", "a.txt": b"x"})
    assert [one.name for one in find_inputs([tmp_path / "b.txt", str(tmp_path / "a.txt"), "python-docs"])] == [
        "b.txt",
        "a.txt",
        "python-docs",
    ]


def test_every_bad_input_is_named_at_once(tmp_path: Path) -> None:
    fill(tmp_path, {"letter.pdf": b"x", "empty/SOURCE.md": b"x"})
    with pytest.raises(DataError) as caught:
        find_inputs([tmp_path / "nowhere.txt", tmp_path / "letter.pdf", tmp_path / "empty"])
    missing, kind, folder = caught.value.problems
    assert "nowhere.txt: no such file or folder" in missing
    assert "letter.pdf: of no known kind; rename it to end in .txt or .jsonl" in kind
    assert "empty: no usable file in this folder" in folder
    odd = tmp_path / "caf\udce9.txt"  # as a listing of Latin-1 names has them
    odd.write_bytes(b"x")
    for word in (odd, fill(tmp_path / "folder", {"a.txt": b"x"})):
        (tmp_path / "folder" / odd.name).write_bytes(b"x")
        with pytest.raises(DataError, match=r"caf\\udce9\.txt': the name is no UTF-8"):
            find_inputs([word])


def test_what_cannot_be_read_in_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "books", {"a.txt": b"x", "more/b.txt": b"x", ".hidden/c.txt": b"x"})
    for name in ("notes", ".d.txt", ".hidden/e.txt"):  # nothing of these would be read
        (folder / name).symlink_to(tmp_path / "gone")
    (folder / "more" / "f.txt").symlink_to(folder / "a.txt")
    assert [file.name for file in find_inputs([folder])[0].files] == ["a.txt", "more/b.txt", "more/f.txt"]
    (folder / "more" / "g.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=r"more/g\.txt: a link to a file that is not there; repair it, or remove it"):
        find_inputs([folder])
    (folder / "more" / "g.txt").unlink()
    scandir = os.scandir

    def closed(path: str) -> object:
        if str(path).endswith(("more", ".hidden")):  # root may read every folder
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(DataError, match=r"books/more: permission denied; make this folder readable, or move it away"):
        find_inputs([folder])


def test_a_linked_folder_is_read_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, {"books/own/a.txt": b"x", "disk/b.txt": b"x", "disk/deep/c.jsonl": b"{}"})
    for name, target in (
        ("a_link", "disk"),
        ("z_link", "disk"),
        ("inside", "books/own"),
        (".hidden", "disk"),
        ("loop", "books"),
    ):
        (tmp_path / "books" / name).symlink_to(tmp_path / target)
    (tmp_path / "disk" / "up").symlink_to(tmp_path)
    (found,) = find_inputs([tmp_path / "books"])
    assert [file.name for file in found.files] == ["a_link/b.txt", "a_link/deep/c.jsonl", "own/a.txt"]
    assert not capsys.readouterr().err


def test_what_a_folder_leaves_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, {"a.txt": b"x", "more/b.json": b"{}", "c.txt.bz2": b"x", ".d.md": b"x"})
    find_inputs([tmp_path])
    assert f"{tmp_path}: leaves out 2 files of other kinds, such as c.txt.bz2\n" == capsys.readouterr().err


def test_empty_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "books", {"a.txt": b"x", "b.txt": b"", "c.jsonl": b""})
    find_inputs([tmp_path / "books"])
    assert "books: leaves out 2 empty files, such as b.txt" in capsys.readouterr().err
    find_inputs([tmp_path / "books" / "a.txt", "python-docs"])
    assert not capsys.readouterr().err


def test_no_input() -> None:
    with pytest.raises(DataError, match="--input names nothing"):
        find_inputs([])
