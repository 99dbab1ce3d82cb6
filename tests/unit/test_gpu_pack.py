"""What is packed for a GPU machine without a registry, and how much of it may travel."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from gpt1_ds.common.errors import UserError
from tools.gpu import kit, pack


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with 1,000 bytes of its own, of which git ignores the kit."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text(".gpu/\nignored/\n".ljust(100, "\n"))
    (tmp_path / "code.py").write_text("x" * 900)
    for name in ("ignored", ".gpu/whl"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ignored" / "large").write_bytes(b"x" * 5000)
    monkeypatch.setattr(kit, "KIT", tmp_path / ".gpu")
    return tmp_path


def fill(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def test_what_travels_is_counted(checkout: Path) -> None:
    fill(checkout / ".gpu" / "whl" / "a.whl", 70)
    fill(checkout / ".gpu" / "data.tar.xz", 7)
    (checkout / ".gpu" / "link").symlink_to(checkout / "ignored" / "large")
    assert pack.sizes(checkout, checkout / ".gpu") == {
        "the checkout": 1000,
        ".gpu/data.tar.xz": 7,
        ".gpu/link": (checkout / ".gpu" / "link").lstat().st_size,
        ".gpu/whl": 70,
        "all that travels": 1077 + (checkout / ".gpu" / "link").lstat().st_size,
    }


def test_60_mib_are_too_much_and_one_byte_less_is_not(checkout: Path) -> None:
    fill(checkout / ".gpu" / "data.tar.xz", (60 << 20) - 1001)
    pack.check(pack.sizes(checkout, checkout / ".gpu"))
    fill(checkout / ".gpu" / "whl" / "a.whl", 1)
    with pytest.raises(UserError, match=r"60\.00 MiB would travel, less than 60 MiB may"):
        pack.check(pack.sizes(checkout, checkout / ".gpu"))


def test_versions_are_those_of_the_constraints() -> None:
    text = (kit.ROOT / "tools" / "constraints.txt").read_text()
    assert f"megatron-core=={pack.version_of('megatron_core')}\n" in text
    assert pack.version_of("typing_extensions"), "of this environment"
    with pytest.raises(UserError, match="no-such-package: not installed here"):
        pack.version_of("no_such_package")


def test_tasks_are_packed_once_and_again_when_they_change(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks, archive = checkout / "ignored", kit.KIT / kit.TASKS
    with pytest.raises(UserError, match="holds none of"):
        pack.pack_tasks(tasks)
    (tasks / "rte").mkdir()
    (tasks / "rte" / "train.tsv").write_text("a")
    pack.pack_tasks(tasks)
    assert "sst2: no such folder" in capsys.readouterr().err
    made = archive.stat().st_ino
    pack.pack_tasks(tasks)
    assert archive.stat().st_ino == made
    (tasks / "rte" / "dev.tsv").write_text("b")
    pack.pack_tasks(tasks)
    with tarfile.open(archive) as packed:
        assert packed.getnames() == ["rte/dev.tsv", "rte/train.tsv"]


def test_what_was_packed_is_unpacked_once_and_nothing_leaves_its_folder(checkout: Path, tmp_path: Path) -> None:
    assert kit.unpack(kit.DATA, tmp_path / "none") is None
    (checkout / "ignored" / "dataset.json").write_text("{}")
    pack._archive(kit.DATA, {"": checkout / "ignored"})
    place = kit.unpack(kit.DATA, tmp_path / "data")
    assert place is not None
    assert (place / "dataset.json").read_text() == "{}"
    (place / "dataset.json").write_text("kept")
    kit.unpack(kit.DATA, tmp_path / "data")
    assert (place / "dataset.json").read_text() == "kept"
    with tarfile.open(kit.KIT / kit.DATA, "w:xz") as archive:
        archive.add(checkout / "code.py", "../outside.py")
    with pytest.raises(tarfile.OutsideDestinationError):
        kit.unpack(kit.DATA, tmp_path / "other")


def test_the_work_folder_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = kit.work_folder()
    assert folder.parent == tmp_path, "the rest of this test changes it"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(kit.KitError, match="not a folder of yours alone"):
        kit.work_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(kit.KitError, match="not a folder of yours alone"):
        kit.work_folder()


def test_the_work_folder_is_where_there_is_room_for_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, own = tmp_path / "named", tmp_path / "checkout"
    named.mkdir()
    own.mkdir()
    monkeypatch.setattr(kit, "ROOT", own)
    monkeypatch.setattr(kit, "PLACES", (tmp_path / "none",))
    monkeypatch.setenv("TMPDIR", str(named))
    assert kit.work_folder().parent == named
    monkeypatch.setattr(kit, "_is_executable", lambda place: place != named)
    assert kit.work_folder().parent == own / ".gpu-work"
    monkeypatch.setattr(kit, "FREE_BYTES", 1 << 80)
    with pytest.raises(kit.KitError, match="may hold programs; export TMPDIR"):
        kit.work_folder()


def test_a_folder_whose_files_may_not_run_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kit._is_executable(tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("mmap.mmap", refuse)
    assert not kit._is_executable(tmp_path)
