import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.errors import LockedError, NodeError, UserError, WorldError
from gpt1_ds.common.files import (
    append,
    did_you_mean,
    discard,
    explain,
    is_taken,
    published_folder,
    sha256_file,
    user_cache,
    write_atomic,
    write_json,
)
from gpt1_ds.common.rundir import RunDir, read_jsonl


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
    with pytest.raises(OSError) as caught, published_folder(tmp_path / "out"):
        raise OSError(errno.ENOSPC, "a library says where")
    assert caught.value.filename == str(tmp_path / "out")
    fill(fail=False)
    assert (tmp_path / "out" / "a").read_text() == "1"
    with pytest.raises(FileExistsError):
        fill(fail=False)


def test_of_two_that_write_one_folder_the_second_is_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(OSError) as late, published_folder(out), published_folder(out) as first:
        (first / "a").touch()
    with pytest.raises(OSError) as later, published_folder(out):
        pass
    for caught in (late, later):
        assert str(explain(caught.value)) == f"{out}: is there already; remove it, or name another place"
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(out) == ["a"]


ENDED = """
import os, sys
from pathlib import Path
from gpt1_ds.common import stop_signals
from gpt1_ds.common.files import published_folder, replacing, scratch_folder
stop_signals.say_termination()
with scratch_folder("."), published_folder(Path("folder")) as folder, replacing(Path("file")) as file:
    (folder / "part").touch()
    assert len(os.listdir()) == 3
    os.kill(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_that_ends_the_program_leaves_nothing_unfinished(number: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", ENDED, str(int(number))]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (-number, "gpt1-ds: terminated\n")
    assert os.listdir(tmp_path) == []


def test_an_empty_folder_is_replaced_but_for_the_one_we_are_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty, here, link = (tmp_path / name for name in ("empty", "here", "link"))
    empty.mkdir()
    here.mkdir()
    link.symlink_to(empty)
    monkeypatch.chdir(here)
    assert [is_taken(place) for place in (empty, Path(), link, tmp_path, tmp_path / "new")] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert empty.is_dir(), "to ask changes nothing"
    with published_folder(empty) as folder:
        (folder / "a").write_text("1")
    assert (empty / "a").read_text() == "1"


def test_json_and_hashes(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"ä": 1})
    assert json.loads((tmp_path / "x.json").read_text()) == {"ä": 1}
    (tmp_path / "empty").write_bytes(b"")
    assert sha256_file(tmp_path / "empty").startswith("e3b0c44298fc1c14")


def test_system_errors_are_explained() -> None:
    explained = explain(OSError(errno.ENOSPC, "No space left on device", "/runs/x"))
    assert explained is not None
    assert str(explained) == "/runs/x: no space left on the device; free some"
    assert explain(OSError(errno.ENOENT, "no such file")) is None
    explained = explain(OSError(errno.EMFILE, "Too many open files"))  # a mapping's error names no file
    assert str(explained) == "a file: this process has as many files open as it may; raise the limit (`ulimit -n`)"
    explained = explain(OSError(errno.EROFS, "", "/ro/.tok.03a88c3d.tmp/model"))
    assert str(explained) == "/ro/tok/model: read-only file system; choose a place you may write to"


def test_no_place_for_temporary_files_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose disk is read-only: libraries ask for one while they are imported."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "gone")])
    with pytest.raises(FileNotFoundError) as caught:
        tempfile.gettempdir()
    told = str(explain(caught.value))
    assert told.startswith("TMPDIR: No usable temporary directory found in ["), told
    assert told.endswith("; free some space, or export TMPDIR=...")
    library = OSError("Matplotlib requires access to a writable cache directory")
    library.__cause__ = caught.value
    assert str(explain(library)) == told


def test_what_is_closed_is_named_with_its_owner(anybody: Path) -> None:
    closed, file = anybody / "closed", anybody / "file"
    file.write_text("")
    (anybody / "link").symlink_to(closed / "config.yaml")
    closed.mkdir()
    file.chmod(0)
    closed.chmod(0)
    for path, part in ((closed / "config.yaml", closed), (anybody / "link", closed), (file, file)):
        with pytest.raises(PermissionError) as caught:
            path.read_text()
        told = str(explain(caught.value))
        assert told.startswith(f"{path}: permission denied: {part} is "), told
        assert told.endswith("'s and closed to you; ask for access, or name another place")
    closed.chmod(0o500)
    with pytest.raises(PermissionError) as caught:
        (closed / "new").write_text("")
    assert str(explain(caught.value)) == f"{closed / 'new'}: permission denied; choose a place you may write to"


def test_a_user_without_a_home_has_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Docker sets HOME for a number without a name; `plan` ended in a traceback where nobody had set it."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert user_cache() == Path("/.cache/gpt1-ds")


def test_a_deleted_current_folder_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "a.txt").write_text("a")
    monkeypatch.chdir(here)
    here.rmdir()
    assert main(["data", "build", "--input", str(tmp_path / "a.txt"), "--tokenizer", str(tmp_path), "--out", "d"]) == 2
    assert capsys.readouterr().err == "gpt1-ds: the current folder was deleted; change to one that is there (cd)\n"
    with pytest.raises(FileNotFoundError) as caught:
        Path("d").mkdir()
    assert "the current folder was deleted" in str(explain(caught.value))


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EROFS", "ETIMEDOUT", "ECONNREFUSED", "ENOLCK"])
def test_faults_of_the_world_pass(name: str) -> None:
    fault = explain(OSError(getattr(errno, name), "", "/runs/x"))
    assert type(fault) is WorldError
    assert str(fault).startswith("/runs/x: ")


@pytest.mark.parametrize(
    "name",
    [
        *("EIO", "EREMOTEIO", "ESTALE", "ENOTCONN", "ESHUTDOWN", "ENFILE", "ENETDOWN", "ENETUNREACH", "EHOSTUNREACH"),
        *("EADDRINUSE", "EADDRNOTAVAIL"),
    ],
)
def test_faults_of_a_node_name_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    fault = pickle.loads(pickle.dumps(explain(OSError(getattr(errno, name), "", "/runs/x"))))
    assert isinstance(fault, NodeError)
    assert fault.passes
    assert fault.host == "node7"
    assert str(fault).startswith("/runs/x: ")
    assert str(fault).endswith("(on node7)")


@pytest.mark.parametrize("name", ["EACCES", "EPERM", "ENOTDIR", "ENAMETOOLONG", "ELOOP", "EISDIR"])
def test_what_was_judged_wrong_stays_so(name: str) -> None:
    told = explain(OSError(getattr(errno, name), "", "/runs/x"))
    assert type(told) is UserError
    assert not told.passes


def test_a_fault_of_the_world_ends_a_job_with_75(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert WorldError("full").code == NodeError("node7", "broken").code == 2
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert WorldError("full").code == NodeError("node7", "broken").code == 75
    assert UserError("wrong").code == LockedError("held").code == 2


def test_errors_of_reading_and_writing_name_the_file(tmp_path: Path) -> None:
    unreadable = tmp_path / "unreadable"
    unreadable.symlink_to("/proc/self/mem")  # a real EIO
    with pytest.raises(OSError) as caught:
        sha256_file(unreadable)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(unreadable))
    with pytest.raises(OSError) as caught:
        append(Path("/dev/full"), "line\n")  # a real ENOSPC
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")


def test_a_line_behind_a_torn_one_is_a_line(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.events.write_text('{"time": "now", "event": "started"}\n{"time": "now", "ev')
    run.add_event("stopped")
    assert [event["event"] for event in read_jsonl(run.events)] == ["started", "stopped"]


def test_what_a_person_put_there_is_removed_where_it_can_be(tmp_path: Path) -> None:
    for name in ("file", "folder", "full"):
        (tmp_path / name).touch() if name == "file" else (tmp_path / name).mkdir()
    (tmp_path / "full" / "theirs").touch()
    assert [discard(tmp_path / name) for name in ("file", "folder", "none", "full")] == [True, True, True, False]
    assert (tmp_path / "full" / "theirs").exists()


def test_the_path_that_was_meant(tmp_path: Path) -> None:
    for name in ("books", "boots"):
        (tmp_path / name).mkdir()
    assert did_you_mean(tmp_path / "boks") == f"did you mean {tmp_path / 'books'}?"
    assert did_you_mean(tmp_path / "boks", lambda path: path.name == "boots") == f"did you mean {tmp_path}/boots?"
    assert did_you_mean(tmp_path / "data") == did_you_mean(tmp_path / "nowhere" / "books") == ""
