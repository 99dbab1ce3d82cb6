"""Which checkpoint a run folder stands for."""

from pathlib import Path

import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.common.errors import CheckpointError


def make(run: Path, *steps: int) -> Path:
    for step in steps:
        (run / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    return run / "checkpoints"


def test_a_run_folder_means_its_best_or_its_newest(tmp_path: Path) -> None:
    checkpoints = make(tmp_path, 100, 99, 7)
    assert find_checkpoint(tmp_path).name == "step-00000100"
    (checkpoints / "best").write_text("step-00000099\n")
    assert find_checkpoint(tmp_path).name == "step-00000099"
    assert find_checkpoint(tmp_path, newest=True).name == "step-00000100"


@pytest.mark.parametrize("content", [b"", b"step-00000009\n", b"../../elsewhere", b"\xff\xfe", b".", b"best"])
def test_a_best_that_is_not_there_is_passed_over(content: bytes, tmp_path: Path) -> None:
    (make(tmp_path, 3) / "best").write_bytes(content)
    assert find_checkpoint(tmp_path).name == "step-00000003"


def test_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"neither a run folder with .*; name a run folder, like runs/NAME$",
    ):
        find_checkpoint(tmp_path)


def test_a_cell_whose_checkpoints_its_study_removed_is_told_so(tmp_path: Path) -> None:
    """It was no run folder, and one was told to name one."""
    (tmp_path / "DONE").touch()
    with pytest.raises(CheckpointError, match=r"done, and its checkpoints were removed, .*; keep them by keep_checkpo"):
        find_checkpoint(tmp_path)


def test_a_checkpoint_without_its_manifest_is_one_that_is_not_complete(tmp_path: Path) -> None:
    folder = make(tmp_path, 3) / "step-00000003"
    with pytest.raises(CheckpointError, match=r"step-00000003: no manifest\.json: this is not a complete checkpoint"):
        manifest.read(find_checkpoint(folder))


def test_the_way_out_is_named(tmp_path: Path) -> None:
    make(tmp_path / "books_cpu", 3)
    with pytest.raises(CheckpointError, match=r"bookscpu: no such folder; did you mean .*/books_cpu\?$"):
        find_checkpoint(tmp_path / "bookscpu")
    with pytest.raises(CheckpointError, match=r"neither .*; it holds runs: .*/books_cpu, for example$"):
        find_checkpoint(tmp_path)
