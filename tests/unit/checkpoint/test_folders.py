"""Which folders are checkpoints of a run, and which are taken when only some of them are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint, log_spaced, prune, remove_unfinished, steps_in
from gpt1_ds.cli import main
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config.sections import CheckpointConfig
from tests.helpers.foreign import make_checkpoint


def steps(given: list[int], points: int) -> list[int]:
    folders = [Path(f"run/checkpoints/step-{step:08d}") for step in given]
    return [int(path.name.removeprefix("step-")) for path in log_spaced(folders, points)]


@pytest.mark.parametrize(
    ("given", "points", "wanted"),
    [
        (list(range(100, 10_001, 100)), 3, [100, 1000, 10_000]),
        (list(range(100, 10_001, 100)), 5, [100, 300, 1000, 3200, 10_000]),
        ([1, 10, 100], 9, [1, 10, 100]),
        ([1, 10, 100], 1, [100]),
        ([7], 4, [7]),
        ([0, 100], 2, [0, 100]),
    ],
)
def test_even_on_a_log_scale(given: list[int], points: int, wanted: list[int]) -> None:
    assert steps(given, points) == wanted


def test_one_that_a_killed_save_was_replacing_is_a_checkpoint(tmp_path: Path) -> None:
    """It has its place again when the run starts; where the new one has it, the old one is none."""
    places = tmp_path / "checkpoints"
    for name in ("step-00000004", ".step-00000008.replaced", ".step-00000008.0a1b.tmp", ".step-00000004.replaced"):
        (places / name).mkdir(parents=True)
    (places / "best").write_text("step-00000008\n")
    assert [path.name for path in steps_in(places)] == ["step-00000004", ".step-00000008.replaced"]
    assert find_checkpoint(tmp_path).name == ".step-00000008.replaced"
    remove_unfinished(places)
    assert sorted(path.name for path in places.iterdir()) == ["best", "step-00000004", "step-00000008"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["sample", "run", "--prompt", "a"],
        ["checkpoint", "verify", "run"],
        ["checkpoint", "export", "run", "--to", "hf", "--out", "hf"],
        ["evaluate", "run", "data.path={data}"],
    ],
    ids=" ".join,
)
def test_one_that_its_run_deletes_while_it_is_read(
    arguments: list[str],
    tiny_data: Path,
    in_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is not called damaged, nor is a file of it sought in vain."""
    run = RunDir(Path("run"))
    folder = make_checkpoint(run.checkpoints / "step-00000000", tiny_data.parent / "tokenizer")
    read = manifest.read

    def saves_meanwhile(of: Path) -> object:
        facts = read(of)
        (run.checkpoints / "step-00000001").mkdir()
        prune(run, CheckpointConfig(keep=1), ())
        return facts

    monkeypatch.setattr(manifest, "read", saves_meanwhile)
    assert main([argument.format(data=tiny_data) for argument in arguments]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gpt1-ds: {folder}: was deleted while it was read: its run keeps only the newest")
