"""Every kind of damage to a checkpoint is noticed and named, and the newest good one is used."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.verify import verify_files
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.rundir import RunDir
from tools import runs

RANKS = 2
Damage = Callable[[Path, random.Random], str]  # does it to a checkpoint folder; what must be named


def a_file(folder: Path, draw: random.Random) -> Path:
    return draw.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size))


def truncate(folder: Path, draw: random.Random) -> str:
    path = a_file(folder, draw)
    path.write_bytes(path.read_bytes()[:-1])
    return path.name


def flip_a_bit(folder: Path, draw: random.Random) -> str:
    path = a_file(folder, draw)
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    return path.name


def delete_a_file(folder: Path, draw: random.Random) -> str:
    path = a_file(folder, draw)
    path.unlink()
    return path.name


def empty_a_file(folder: Path, draw: random.Random) -> str:
    path = a_file(folder, draw)
    path.write_bytes(b"")
    return path.name


def lose_the_manifest(folder: Path, draw: random.Random) -> str:
    (folder / "manifest.json").unlink()
    return "manifest.json"


def swap_with_the_one_before(folder: Path, draw: random.Random) -> str:
    """Both are damaged by this."""
    other = steps_in(folder.parent)[-2]
    name = f"state/rank-{draw.randrange(RANKS):05d}.safetensors"
    one, two = (folder / name).read_bytes(), (other / name).read_bytes()
    (folder / name).write_bytes(two)
    (other / name).write_bytes(one)
    return name


def take_the_place_of_a_newer_one(folder: Path, draw: random.Random) -> str:
    shutil.copytree(folder, folder.with_name("step-00000099"))
    return "step-00000099"


def forge(folder: Path, key: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Every file verifies, but the state is not what the manifest says: as if a wrong state had been saved."""
    facts = manifest.read(folder)
    change(facts[key])
    manifest.write(folder, {name: value for name, value in facts.items() if name != "format"})


def hold_another_parameter(folder: Path, draw: random.Random) -> str:
    forge(folder, "parameters", lambda hashes: hashes.update({"positions.weight": "0123456789abcdef"}))
    return "positions.weight is not what was saved"


def fail_the_probe(folder: Path, draw: random.Random) -> str:
    forge(folder, "probe", lambda probe: probe.update(loss=probe["loss"] + 0.1))
    return "the probe's loss is"


def lose_a_block(folder: Path, draw: random.Random) -> str:
    """Linux answers EIO to who reads its own memory's first bytes, as a broken disk does."""
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").symlink_to("/proc/self/mem")
    return "manifest.json: damaged: Input/output error"


DAMAGES = [truncate, flip_a_bit, delete_a_file, empty_a_file]
CASES = [(damage, seed) for damage in DAMAGES for seed in range(2)]
CASES += [(lose_the_manifest, 0), (swap_with_the_one_before, 0), (take_the_place_of_a_newer_one, 0)]
CASES += [(hold_another_parameter, 0), (fail_the_probe, 0), (lose_a_block, 0)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_data: Path) -> tuple[list[str], RunDir]:
    """A run of 15 steps with checkpoints 5, 10 and 15."""
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path_factory.mktemp('runs')}", "schedule.kind=constant"]
    assert runs.pretrain([*arguments, "train.steps=15"], RANKS) == 0
    return arguments, runs.folder(arguments)


@pytest.mark.parametrize(("damage", "seed"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_damage_is_named_and_passed_by(damage: Damage, seed: int, finished, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments, original = finished
    shutil.copytree(original.path, tmp_path / "run", symlinks=True)
    here = [*arguments, f"run.dir={tmp_path}", "train.steps=16"]
    newest = steps_in(tmp_path / "run" / "checkpoints")[-1]
    named = damage(newest, random.Random(f"{damage.__name__} {seed}"))
    assert runs.pretrain(here, RANKS) == 0
    run_dir = runs.folder(here)
    aside = runs.events(run_dir, "set aside")
    assert named in aside[0]["problem"]
    assert all((run_dir.checkpoints / event["to"]).is_dir() for event in aside), "renamed, never deleted"
    used = {swap_with_the_one_before: 5, take_the_place_of_a_newer_one: 15}.get(damage, 10)
    assert runs.events(run_dir, "started")[-1]["step"] == used
    assert runs.losses(run_dir).keys() == set(range(1, 17))


@pytest.mark.parametrize("content", ["step-00000005\n", "step-00000077\n", "", "../../elsewhere"])
def test_a_stale_latest_is_said_and_mended(content: str, finished, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments, original = finished
    shutil.copytree(original.path, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "latest").write_text(content)
    here = [*arguments, f"run.dir={tmp_path}", "train.steps=16"]
    assert runs.pretrain(here, RANKS) == 0
    run_dir = runs.folder(here)
    assert runs.events(run_dir, "stale latest")[0]["newest"] == "step-00000015"
    assert runs.events(run_dir, "started")[-1]["step"] == 15
    assert run_dir.latest.read_text() == "step-00000016\n"


def test_when_none_is_good_the_run_refuses(finished, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments, original = finished
    shutil.copytree(original.path, tmp_path / "run")
    for folder in steps_in(tmp_path / "run" / "checkpoints"):
        empty_a_file(folder, random.Random(folder.name))
    with pytest.raises(CheckpointError, match=r"no good checkpoint is left: .*step-00000015.*step-00000005"):
        runs.pretrain([*arguments, f"run.dir={tmp_path}", "train.steps=16"], RANKS)
    assert len(runs.losses(RunDir(tmp_path / "run"))) == 15, "the record of the run is not touched"
    here = steps_in(tmp_path / "run" / "checkpoints")
    assert [folder.name for folder in here] == ["step-00000005", "step-00000010", "step-00000015"], "all as they were"
    for folder in here:
        folder.rename(folder.with_name(f"{folder.name}.damaged-by-hand"))
    with pytest.raises(CheckpointError, match=r"no good checkpoint is left, there were step-00000005\.damaged-"):
        runs.pretrain([*arguments, f"run.dir={tmp_path}", "train.steps=16"], RANKS)


def test_other_versions_are_said(finished, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments, original = finished
    shutil.copytree(original.path, tmp_path / "run")
    run_dir = RunDir(tmp_path / "run")
    now = json.loads(run_dir.environment.read_text())
    own = {"code": "0" * 16, "version": "0.0.1"}
    before = {**now, "gpt1_ds": own, "deepspeed": "0.19.7", "megatron-core": "0.16.0", "python": "3.11.0"}
    run_dir.environment.write_text(json.dumps(before))
    assert runs.pretrain([*arguments, f"run.dir={tmp_path}", "train.steps=16"], RANKS) == 0
    (event,) = runs.events(run_dir, "environment changed")
    assert event["changes"].keys() == {"gpt1_ds", "deepspeed", "megatron-core", "python"}
    assert event["changes"]["deepspeed"] == ["0.19.7", now["deepspeed"]]
    (line,) = [line for line in run_dir.rank_log(0).read_text().splitlines() if "since the last segment" in line]
    assert "gpt1_ds 0.0.1 (code 0000000000000000) ->" in line
    assert f"python 3.11.0 -> {now['python']}" in line


def test_one_of_a_newer_format_is_refused_not_set_aside(finished, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments, original = finished
    shutil.copytree(original.path, tmp_path / "run")
    newest = steps_in(tmp_path / "run" / "checkpoints")[-1]
    body = json.loads((newest / "manifest.json").read_text())
    (newest / "manifest.json").write_text(json.dumps({**body, "format": manifest.FORMAT + 1}))
    with pytest.raises(CheckpointError, match="is newer than this program reads"):
        runs.pretrain([*arguments, f"run.dir={tmp_path}", "train.steps=16"], RANKS)
    assert newest.is_dir()


def test_every_file_at_fifty_places_and_never_a_good_one(finished, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _, original = finished
    folder = Path(shutil.copytree(steps_in(original.checkpoints)[-1], tmp_path / "step-00000015"))
    draw = random.Random(1)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        good = path.read_bytes()
        for _ in range(50):
            at = draw.randrange(len(good))
            path.write_bytes(good[:at] + bytes([good[at] ^ 1 << draw.randrange(8)]) + good[at + 1 :])
            with pytest.raises(CheckpointError):
                verify_files(folder, manifest.read(folder))
        path.write_bytes(good)
    for _ in range(1000):
        verify_files(folder, manifest.read(folder))
