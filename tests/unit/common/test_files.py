import errno
import json
import os
from pathlib import Path

import pytest

from gpt1_ds.common.files import explain, published_folder, sha256_file, write_atomic, write_json


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    write_atomic(target, "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        write_atomic(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fill(fail: bool) -> None:
        with published_folder(tmp_path / "out") as folder:
            (folder / "a").write_text("1")
            assert not (tmp_path / "out").exists()
            if fail:
                raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        fill(fail=True)
    assert os.listdir(tmp_path) == []
    fill(fail=False)
    assert (tmp_path / "out" / "a").read_text() == "1"
    with pytest.raises(FileExistsError):
        fill(fail=False)


def test_json_and_hashes(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"ä": 1})
    assert json.loads((tmp_path / "x.json").read_text()) == {"ä": 1}
    (tmp_path / "empty").write_bytes(b"")
    assert sha256_file(tmp_path / "empty").startswith("e3b0c44298fc1c14")


def test_system_errors_are_explained() -> None:
    explained = explain(OSError(errno.ENOSPC, "No space left on device", "/runs/x"))
    assert explained is not None
    assert str(explained) == "/runs/x: no space left on the device; free some"
    assert explain(OSError(errno.EIO, "I/O error")) is None
