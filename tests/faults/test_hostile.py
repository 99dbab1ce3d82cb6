"""A checkpoint made to do harm is refused with one line and runs nothing, even when its sums are right."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt1_ds import cli
from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.launcher import launch
from tools import runs
from tools.memory import memory_now, memory_peak


class Payload:
    """What unpickling would run."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.canary}'",)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, tiny_data: Path) -> Path:
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path_factory.mktemp('runs')}", "train.steps=2"]
    assert runs.pretrain(arguments, 1) == 0
    return find_checkpoint(runs.folder(arguments).path)


@pytest.fixture
def folder(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / honest.name))


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


def sign(folder: Path, **changes: object) -> None:
    """Make the manifest fit whatever the files now are, as an attacker would."""
    body = {**json.loads((folder / "manifest.json").read_text()), **changes}
    body.pop("checksum")
    for name in body["files"]:
        if (folder / name).is_file():
            body["files"][name] = manifest.file_facts(folder / name)
    manifest.write(folder, body)


def edit_index(folder: Path, edit: Callable[[dict], None]) -> None:  # type: ignore[type-arg]
    path = folder / "state" / "index.json"
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))
    sign(folder)


def assert_refused(folder: Path, canary: Path, *texts: str) -> None:
    from gpt1_ds.evaluation.load import load_checkpoint

    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert all(one in text for one in texts), text
    assert not canary.exists()


def state_file(folder: Path) -> Path:
    return folder / "state" / "rank-00000.safetensors"


def test_the_honest_one_loads(folder: Path) -> None:
    from gpt1_ds.evaluation.load import load_checkpoint

    assert load_checkpoint(folder).step == 2


def test_reading_again_and_again_leaves_no_threads(folder: Path) -> None:
    from gpt1_ds.evaluation.load import load_checkpoint

    def threads() -> int:
        load_checkpoint(folder)
        return len(list(Path("/proc/self/task").iterdir()))

    first = threads()
    assert [threads() for _ in range(3)] == [first] * 3


def test_pickles_in_place_of_every_file(folder: Path, canary: Path) -> None:
    names = list(json.loads((folder / "manifest.json").read_text())["files"])
    keep = {name: (folder / name).read_bytes() for name in names}
    for name in names:
        if name.startswith("tokenizer/"):
            continue
        (folder / name).write_bytes(pickle.dumps(Payload(canary)))
        sign(folder)
        assert_refused(folder, canary)
        (folder / name).write_bytes(keep[name])
    (folder / "manifest.json").write_bytes(pickle.dumps(Payload(canary)))
    assert_refused(folder, canary, "not readable as JSON")


def test_a_torch_archive_with_a_payload(folder: Path, canary: Path) -> None:
    import torch

    torch.save({"w": Payload(canary)}, folder / "state" / "evil.pt")
    edit_index(folder, lambda index: index["positions.weight"]["slices"]["master"][0].update(file="state/evil.pt"))
    assert_refused(folder, canary, "evil.pt: not a safetensors file")


def test_an_unnamed_extra_file_is_never_opened(folder: Path, canary: Path) -> None:
    from gpt1_ds.evaluation.load import load_checkpoint

    (folder / "state" / "extra.pkl").write_bytes(pickle.dumps(Payload(canary)))
    load_checkpoint(folder)
    assert not canary.exists()


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "state/../../outside"])
def test_paths_out_of_the_folder(name: str, folder: Path, canary: Path) -> None:
    (folder.parent / "outside").write_text("x")
    files = json.loads((folder / "manifest.json").read_text())["files"]
    sign(folder, files={**files, name: {"bytes": 1, "sha256": "0"}})
    assert_refused(folder, canary, "not a plain file of this checkpoint")


def test_a_path_out_of_the_folder_in_the_index(folder: Path, canary: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    shutil.copy(state_file(folder), outside)
    edit_index(
        folder, lambda index: index["positions.weight"]["slices"]["master"][0].update(file="../outside.safetensors")
    )
    assert_refused(folder, canary, "positions.weight cannot be read")


@pytest.mark.parametrize("whole_folder", [False, True])
def test_links_out_of_the_folder(whole_folder: bool, folder: Path, canary: Path) -> None:
    inside = folder / "state" if whole_folder else state_file(folder)
    outside = folder.parent / "outside"
    shutil.move(inside, outside)
    inside.symlink_to(outside)
    assert_refused(folder, canary, "not a plain file of this checkpoint")


@pytest.mark.parametrize("name", ["config.yaml", "state/index.json", "state/rank-00000.safetensors"])
def test_an_unlisted_device_is_not_read(name: str, folder: Path, canary: Path) -> None:
    files = json.loads((folder / "manifest.json").read_text())["files"]
    del files[name]
    (folder / name).unlink()
    os.mkfifo(folder / name)
    sign(folder, files=files)
    assert_refused(folder, canary, "file")


def test_a_device_in_place_of_a_file(folder: Path, canary: Path) -> None:
    state_file(folder).unlink()
    os.mkfifo(state_file(folder))
    assert_refused(folder, canary, "not a plain file of this checkpoint")


@pytest.mark.parametrize(
    ("width", "why"), [(10**5, "its files hold"), (6 * 10**12, "model.width=6000000000000 is too")]
)
def test_a_model_far_larger_than_its_files(width: int, why: str, folder: Path, canary: Path) -> None:
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("width: 32", f"width: {width}"))
    sign(folder)
    assert_refused(folder, canary, why)


def test_absurd_shapes_in_the_index(folder: Path, canary: Path) -> None:
    edit_index(folder, lambda index: index["positions.weight"].update(shape=[10**9, 10**9]))
    assert_refused(folder, canary, "positions.weight", "the checkpoint has shape [1000000000, 1000000000]")


def test_absurd_slices_in_the_index(folder: Path, canary: Path) -> None:
    edit_index(folder, lambda index: index["positions.weight"]["slices"]["master"][0].update(count=10**15))
    assert_refused(folder, canary, "positions.weight cannot be read")


def test_a_header_of_ten_gibibytes(folder: Path, canary: Path) -> None:
    path = state_file(folder)
    path.write_bytes(struct.pack("<Q", 10 << 30) + path.read_bytes()[8:])
    sign(folder)
    assert_refused(folder, canary, "its header would be 10737418240 bytes")


def test_tensors_beyond_the_end_of_the_file(folder: Path, canary: Path) -> None:
    path = state_file(folder)
    path.write_bytes(path.read_bytes()[:-4096])
    sign(folder)
    assert_refused(folder, canary, "does not fit its place")


def test_weights_that_are_not_finite(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = state_file(folder)
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:begin] + b"\xff" * (len(data) - begin))
    sign(folder)
    assert cli.main(["sample", "--checkpoint", str(folder), "--prompt", "a"]) == 2
    assert capsys.readouterr().err.endswith("its weights give no finite numbers: this is not a trained model\n")


def test_json_without_end(folder: Path, canary: Path) -> None:
    (folder / "manifest.json").write_text("[" * 100_000)
    assert_refused(folder, canary, "not readable as JSON")


def test_json_of_another_kind(folder: Path, canary: Path) -> None:
    for value in ("[]", "7", '"x"', "null"):
        (folder / "manifest.json").write_text(value)
        assert_refused(folder, canary, "not a JSON object")
    (folder / "manifest.json").write_text('{"format": 1}')
    assert_refused(folder, canary, "checksum")


@pytest.mark.parametrize("name", ["manifest.json", "state/index.json"])
def test_64_mib_of_json_take_little_memory(name: str, folder: Path, canary: Path) -> None:
    if name != "manifest.json":
        files = json.loads((folder / "manifest.json").read_text())["files"]
        text = b"[" + b"[]," * ((64 << 20) // 3) + b"[]]"
        (folder / name).write_bytes(text)
        sign(folder, files=files)
    else:
        (folder / name).write_bytes(b"[" + b"[]," * ((64 << 20) // 3) + b"[]]")
    before, began = memory_now(), time.process_time()
    assert_refused(folder, canary, "not readable as JSON")
    assert time.process_time() - began < 1
    assert memory_peak() - before < 200 << 20


def test_a_small_share_of_the_fuzz() -> None:
    """`python tools/fuzz_hostile.py` makes a thousand mutations. Its process is its own: the time of each is measured,
    and threads and garbage of other tests would count.
    """
    from tools.fuzz_hostile import KINDS

    (tallies,) = launch.run("tools.fuzz_hostile:fuzz", (7 * len(KINDS), 2), 1)
    assert tallies.keys() == KINDS.keys()
    assert [failure for tally in tallies.values() for failure in tally.failures] == []
    assert all(tally.refused for tally in tallies.values()), "each kind was attacked"


def test_escapes_of_a_text_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sample", "--checkpoint", str(folder), "--prompt", "a\x1b[2J", "--tokens", "1"]) == 0
    assert "\x1b" not in (out := capsys.readouterr().out)
    assert out.startswith("a\\x1b[2J")


def test_escapes_of_a_run_folder_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    run_dir.add_event("saved\x1b]0;x\x07", problem="a\nb\x1b[2J")
    assert cli.main(["slurm", "status", str(run_dir.path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.splitlines()[-1].endswith("saved\\x1b]0;x\\x07 problem=a b\\x1b[2J")


def test_secrets_stay_out_of_the_configuration(folder: Path, canary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "topsecret")
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("  name: ", "  name: ${oc.env:WANDB_API_KEY} #", 1))
    sign(folder)
    from gpt1_ds.evaluation.load import load_checkpoint

    with pytest.raises(CheckpointError, match=r"no .* is read from a run or a checkpoint") as caught:
        load_checkpoint(folder)
    assert "topsecret" not in str(caught.value)


def test_the_program_says_so_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.yaml").unlink()
    assert cli.main(["sample", "--checkpoint", str(folder), "--prompt", "x"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "config.yaml: missing" in error
