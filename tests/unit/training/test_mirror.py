"""What a store of a run's checkpoints takes, keeps and gives back; a folder stands for the store."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from gpt1_ds.checkpoint import manifest, store
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.store import Store
from gpt1_ds.cli import main
from gpt1_ds.common.errors import CheckpointError, ConfigError, DataError, UserError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import load_recorded
from gpt1_ds.config.sections import CheckpointConfig
from gpt1_ds.launcher import launch
from gpt1_ds.training import mirror
from gpt1_ds.training.checks import Start
from gpt1_ds.training.copies import Copies, place_of
from tools import runs


@pytest.fixture(scope="module")
def run(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that has copied its checkpoints of steps 2, 4 and 6 and kept all of them."""
    folder = tmp_path_factory.mktemp("mirrored")
    overrides = [f"data.path={tiny_data}", f"run.dir={folder}", "train.steps=6", "checkpoint.every=2"]
    assert runs.pretrain([*overrides, f"checkpoint.mirror=file://{folder}/store"], 1) == 0
    return runs.folder(overrides)


def place(run: RunDir) -> Path:
    return run.path.parent / "store" / run.path.name


def name_best(run: RunDir, step: int, best: int) -> None:
    """Let the checkpoint of `step` know a best one, as the file `best` does."""
    facts = {key: value for key, value in manifest.read(run.checkpoint(step)).items() if key != "format"}
    manifest.write(run.checkpoint(step), facts | {"best": {"step": best, "score": 0.5}})
    run.best.write_text(f"{run.checkpoint(best).name}\n")


def test_it_holds_what_the_run_folder_holds(run: RunDir) -> None:
    for folder in steps_in(run.checkpoints):
        there = place(run) / "checkpoints" / folder.name
        files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        assert files == sorted(path.relative_to(there) for path in there.rglob("*") if path.is_file())
        assert all((folder / name).read_bytes() == (there / name).read_bytes() for name in files)
    assert {event["step"] for event in runs.events(run, "copied")} == {2, 4, 6}, "the newest first, each once"
    assert len(runs.events(run, "copied")) == 3


def with_a_slow_store(overrides: list[str]) -> int:
    """Runs on the rank: no checkpoint is copied before the last one is saved."""
    from gpt1_ds.training.pretraining import pretrain

    copy, run = store.copy, runs.folder(overrides)

    def late(*arguments: Any) -> bool:
        while {"event": "saved", "step": 6}.items() - (runs.events(run, "saved") or [{}])[-1].items():
            time.sleep(0.05)
        return copy(*arguments)

    store.copy = late  # type: ignore[assignment]
    return pretrain(runs.configuration(overrides))


def test_what_was_spared_for_its_copy_is_deleted_in_the_end(tiny_data: Path, tmp_path: Path) -> None:
    overrides = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=6", "checkpoint.every=1"]
    overrides += ["checkpoint.keep=1", f"checkpoint.mirror=file://{tmp_path}/store"]
    assert launch.run("tests.unit.training.test_mirror:with_a_slow_store", (overrides,), 1) == [0]
    left = runs.folder(overrides)
    assert [event["step"] for event in runs.events(left, "copied")] == [1, 6], "a save was faster than a copy"
    assert [folder.name for folder in steps_in(left.checkpoints)] == ["step-00000006"]
    assert [folder.name for folder in steps_in(place(left) / "checkpoints")] == ["step-00000006"]


def test_a_run_stops_copying_where_another_has_claimed_its_place(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both began while the store had no checkpoint, which would tell the second one; the copies of both would mix."""
    shutil.copytree(run.path, tmp_path / "run")
    own, there = RunDir(tmp_path / "run"), tmp_path / "store" / "run"
    copies = Copies(Store(f"file://{there}"), own, CheckpointConfig())
    copies.claim()
    (there / own.config.name).write_text(own.config.read_text().replace("lr: ", "lr: 1"))
    copies._copy_all(steps_in(own.checkpoints))
    copies.report()
    assert sorted(path.name for path in there.iterdir()) == [own.config.name]
    assert "another run of this name, with other keys, copies there now, too; choose" in capsys.readouterr().err
    copies.claim()
    copies._copy_all(steps_in(own.checkpoints)[-1:])
    assert store.whole(copies.place.names()) == [steps_in(own.checkpoints)[-1].name]


def test_a_damaged_copy_is_passed_over(run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = place(run) / "checkpoints" / "step-00000006"
    (damaged,) = newest.glob("state/*.safetensors")
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        assert mirror.fetch_run(f"file://{place(run)}", tmp_path / "run") == "step-00000004"
    finally:
        damaged.write_bytes(content)
    told = capsys.readouterr().err
    assert f"{place(run)}/checkpoints/step-00000006/state/rank-00000.safetensors: damaged: its sha256 does" in told
    assert ".tmp" not in told, "a folder that is gone"
    assert [folder.name for folder in steps_in(tmp_path / "run" / "checkpoints")] == ["step-00000004"]
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0, "for its owner alone, as every run"


def test_damaged_copies_alone_are_told(run: RunDir, tmp_path: Path) -> None:
    there = tmp_path / "store"
    shutil.copytree(place(run), there)
    for file in there.glob("checkpoints/*/state/*.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="holds damaged checkpoints alone"):
        mirror.fetch_run(f"file://{there}", tmp_path / "run")
    assert list(tmp_path.iterdir()) == [there], "no part of a run is left, which would refuse the next try"


def test_damaged_copies_alone_are_not_buried(run: RunDir, tiny_data: Path, tmp_path: Path) -> None:
    """A run in an empty folder does not begin from scratch over them; one that has a whole checkpoint continues."""
    mirror.copy_run(run.path, f"file://{tmp_path}/store")
    there = tmp_path / "store" / run.path.name
    for file in there.glob("checkpoints/*/state/*.safetensors"):
        file.unlink()
    before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
    overrides = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=6", "checkpoint.every=2"]
    overrides += [f"checkpoint.mirror=file://{tmp_path}/store"]
    with pytest.raises(UserError, match=r"holds damaged checkpoints alone; .* delete what is there, or choose another"):
        runs.pretrain(overrides, 1)
    assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before
    copies = Copies(place_of(f"file://{tmp_path}/store", run.path.name), run, CheckpointConfig())
    copies.bring_newest()


def test_what_may_not_be_read_is_not_damaged(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = LocalFileSystem.get_file

    def refused(system: LocalFileSystem, there: str, here: str, **options: object) -> None:
        if "/step-00000006/state/" in there:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), there)
        fetched(system, there, here, **options)

    monkeypatch.setattr(LocalFileSystem, "get_file", refused)
    with pytest.raises(DataError, match=r"/step-00000006/state/.*: no right to read it; look at your credentials"):
        mirror.fetch_run(f"file://{place(run)}", tmp_path / "run")
    assert not list(tmp_path.iterdir()), "no older one is taken for it"


def test_half_a_checkpoint_is_none(run: RunDir, tmp_path: Path) -> None:
    names = Store(f"file://{place(run)}").names()
    assert store.whole(names) == ["step-00000002", "step-00000004", "step-00000006"]
    assert store.whole(name for name in names if not name.endswith("6/manifest.json")) == [
        "step-00000002",
        "step-00000004",
    ]
    assert store.whole([f"below/{name}" for name in names]) == [], "those are another run's"
    with pytest.raises(CheckpointError, match="holds no whole checkpoint; name a run there"):
        mirror.fetch_run(f"file://{tmp_path}", tmp_path / "run")


def test_a_copy_is_made_once(run: RunDir, tmp_path: Path) -> None:
    newest = steps_in(run.checkpoints)[-1]
    there = Store(f"file://{tmp_path}/copy")
    assert store.copy(newest, there)
    assert not store.copy(newest, there)
    (shard,) = (tmp_path / "copy").glob("state/*.safetensors")
    shard.unlink()
    assert store.copy(newest, there), "its manifest is there, and not all that this lists"
    assert shard.is_file()
    store.remove(there)
    assert there.names() == []


def test_a_file_outside_is_refused(run: RunDir, tmp_path: Path) -> None:
    there = tmp_path / "copy" / "step-00000006"
    assert store.copy(steps_in(run.checkpoints)[-1], Store(f"file://{there}"))
    facts = {key: value for key, value in manifest.read(there).items() if key != "format"}
    facts["files"]["../outside"] = {"bytes": 1, "sha256": "0"}
    manifest.write(there, facts)
    with pytest.raises(CheckpointError, match=r"names a file outside the folder: '\.\./outside'; refused"):
        store.fetch(Store(f"file://{there}"), tmp_path / "back")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["checkpoint.resume=never"], "holds a run of this name, and checkpoint.resume=never begins anew"),
        (["run.seed=7"], "belongs to another configuration: run.seed was 1 and is now 7"),
    ],
)
def test_another_run_does_not_mix_with_it(
    more: list[str], message: str, run: RunDir, tiny_data: Path, tmp_path: Path
) -> None:
    overrides = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=6", "checkpoint.every=2", *more]
    with pytest.raises(UserError) as caught:
        runs.pretrain([*overrides, f"checkpoint.mirror=file://{place(run).parent}"], 1)
    assert message in str(caught.value)


def test_by_hand_it_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.yaml; name a run folder, like runs/NAME"):
        mirror.copy_run(tmp_path, f"file://{tmp_path}/store")
    with pytest.raises(ConfigError, match=r"ADDRESS=s4://a: Protocol not known: s4; look at the address"):
        mirror.fetch_run("s4://a", tmp_path / "run")


def test_by_hand_an_older_folder_takes_nothing_from_a_newer_store(run: RunDir, tmp_path: Path) -> None:
    mirror.copy_run(run.path, f"file://{tmp_path}/store")
    there = tmp_path / "store" / run.path.name
    before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
    older = RunDir(tmp_path / run.path.name)
    shutil.copytree(run.path, older.path)
    older.metrics.write_text("")
    (shard,) = older.checkpoint(6).glob("state/*.safetensors")
    os.truncate(shard, 100)
    for _ in range(2):
        with pytest.raises(
            CheckpointError, match=r"holds step-00000006, which is newer .* checkpoint fetch .*, or copy"
        ):
            mirror.copy_run(older.path, f"file://{tmp_path}/store")
        shutil.rmtree(older.checkpoint(6), ignore_errors=True)
    assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("below", ["", "run", "run/checkpoints", "link"])
def test_a_run_folder_is_not_its_own_mirror(below: str, run: RunDir, tiny_data: Path, tmp_path: Path) -> None:
    """Neither is a folder in it or around it: copies would overwrite the lines of what they are made of."""
    overrides = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=6", "checkpoint.every=2"]
    own = runs.folder(overrides)
    assert own.path.name == "run"
    shutil.copytree(run.path, own.path)
    (tmp_path / "link").symlink_to(tmp_path)
    address = f"file://{tmp_path / below}"
    with pytest.raises(ConfigError, match=r"checkpoint\.mirror: file:.* are one, or one is in the other"):
        Start(runs.configuration([*overrides, f"checkpoint.mirror={address}"]), 1).check()
    with pytest.raises(ConfigError, match=r"--to: file:.* are one, or one is in the other"):
        mirror.copy_run(own.path, address)
    with pytest.raises(ConfigError, match="are one, or one is in the other"):
        store.check_apart(f"file://{tmp_path}", own.path, "--to")
    Start(runs.configuration([*overrides, f"checkpoint.mirror=file://{tmp_path}/store"]), 1).check()


@pytest.mark.parametrize(("folder", "name"), [("sweep/trial", "sweep/trial"), ("elsewhere", "elsewhere")])
def test_by_hand_a_name_with_a_folder_keeps_it(folder: str, name: str, run: RunDir, tmp_path: Path) -> None:
    """As training does, which copies each trial of a sweep to a place of its own; one that was renamed is another."""
    shutil.copytree(run.path, tmp_path / folder)
    recorded = tmp_path / folder / "config.yaml"
    recorded.write_text(recorded.read_text().replace("name: run\n", "name: sweep/trial\n"))
    assert load_recorded(recorded).run.name == "sweep/trial"
    there = mirror.copy_run(tmp_path / folder, f"file://{tmp_path}/store")
    assert str(there) == f"file://{tmp_path}/store/{name}"


def test_one_that_a_killed_save_was_replacing_is_copied_by_its_name(run: RunDir, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run", ignore=shutil.ignore_patterns("store"))
    newest = tmp_path / "run" / "checkpoints" / "step-00000006"
    newest.rename(newest.with_name(f".{newest.name}.replaced"))
    there = mirror.copy_run(tmp_path / "run", f"file://{tmp_path}/store")
    assert store.whole(there.names()) == ["step-00000002", "step-00000004", "step-00000006"]


def test_a_folder_that_lost_its_checkpoints_is_filled_again(run: RunDir, tiny_data: Path, tmp_path: Path) -> None:
    """The check before a run does not refuse what the store may repair; without a mirror it does."""
    overrides = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=6", "checkpoint.every=2"]
    lost = runs.folder(overrides)
    shutil.copytree(run.path, lost.path)
    for folder in steps_in(lost.checkpoints):
        shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="no good checkpoint is left"):
        Start(runs.configuration(overrides), 1).check()
    mirror.copy_run(run.path, f"file://{tmp_path}/store")
    overrides += [f"checkpoint.mirror=file://{tmp_path}/store"]
    start = Start(runs.configuration(overrides), 1)
    start.check()
    assert start.finished_step() is None, "DONE stands for a checkpoint that is lost"
    assert runs.pretrain(overrides, 1) == 0
    assert runs.weights(lost) == runs.weights(run)
    assert len(runs.events(lost, "brought back")) == 1


def copied(run: RunDir, data: Path, folder: Path) -> tuple[list[str], RunDir]:
    """A copy of the run below `folder`, where its store is, too, and the arguments that continue it to step 8."""
    mirror.copy_run(run.path, f"file://{folder}/store")
    overrides = [f"data.path={data}", f"run.dir={folder}", "train.steps=8", "checkpoint.every=2"]
    overrides += [f"checkpoint.mirror=file://{folder}/store"]
    shutil.copytree(run.path, runs.folder(overrides).path)
    return overrides, runs.folder(overrides)


def test_a_checkpoint_that_lost_files_comes_back_to_its_place(run: RunDir, tiny_data: Path, tmp_path: Path) -> None:
    """Those that are damaged are set aside, as far as their sizes tell."""
    overrides, lost = copied(run, tiny_data, tmp_path)
    for folder in steps_in(lost.checkpoints)[1:]:
        os.truncate(next(folder.glob("state/rank-*.safetensors")), 100)
    assert runs.pretrain(overrides, 1) == 0
    (brought,) = runs.events(lost, "brought back")
    assert brought["checkpoint"] == "step-00000006"
    assert [event["checkpoint"] for event in runs.events(lost, "set aside")] == ["step-00000006"]
    assert [event["step"] for event in runs.events(lost, "started")][-1] == 6


def flip(folder: Path) -> bytes:
    """Changes one bit of a checkpoint, whose size stays, and returns what its shard held before."""
    shard = next(folder.glob("state/rank-*.safetensors"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return content


def test_a_flipped_bit_is_mended_from_the_store(run: RunDir, tiny_data: Path, tmp_path: Path) -> None:
    """Steps were lost to an older checkpoint, and the run was refused where there was none, beside a whole copy."""
    overrides, hurt = copied(run, tiny_data, tmp_path)
    content = flip(hurt.checkpoint(6))
    assert runs.pretrain(overrides, 2) == 0
    assert [event["step"] for event in runs.events(hurt, "started")][-1] == 6
    assert [event["checkpoint"] for event in runs.events(hurt, "set aside")] == ["step-00000006"]
    assert [event["checkpoint"] for event in runs.events(hurt, "brought back")] == ["step-00000006"]
    assert next(hurt.checkpoint(6).glob("state/rank-*.safetensors")).read_bytes() == content
    assert not list(hurt.checkpoints.glob(".*"))


def test_without_a_whole_copy_a_damaged_checkpoint_stays_as_it_is(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.copy_run(run.path, f"file://{tmp_path}/store")
    hurt = RunDir(tmp_path / run.path.name)
    shutil.copytree(run.path, hurt.path)
    copies = Copies(place_of(f"file://{tmp_path}/store", "run"), hurt, CheckpointConfig())
    flip(hurt.checkpoint(6))
    flip(tmp_path / "store" / "run" / "checkpoints" / "step-00000006")
    before = sorted(hurt.path.rglob("*"))
    assert copies.replace(hurt.checkpoint(6), "one bit is wrong") is None
    told = capsys.readouterr().err
    assert f"the manifest: no whole copy of {hurt.checkpoint(6)} comes from there" in told
    shutil.rmtree(tmp_path / "store" / "run" / "checkpoints" / "step-00000006")
    assert copies.replace(hurt.checkpoint(6), "one bit is wrong") is None, "the store has none"
    assert sorted(hurt.path.rglob("*")) == before


def test_a_lost_mount_is_not_filled(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copies went to the disk under it, where nobody sees them once it is mounted again."""
    monkeypatch.setattr("gpt1_ds.training.copies.PAUSE", 0.0)
    own, mount = RunDir(tmp_path / "run"), tmp_path / "mount"
    shutil.copytree(run.path, own.path)
    copies = Copies(place_of(f"file://{mount}/store", "run"), own, CheckpointConfig(keep=9))
    copies.claim()
    mount.rename(tmp_path / "away")
    mount.mkdir()

    def copy() -> int:
        copies.follow()
        while copies.is_busy:
            time.sleep(0.01)
        copies.report()
        return len(runs.events(own, "copied"))

    before = len(runs.events(own, "copied"))
    assert copy() == before
    assert "what this run wrote there is gone; mount the disk again" in capsys.readouterr().err
    assert not list(mount.iterdir())
    mount.rmdir()
    (tmp_path / "away").rename(mount)
    assert copy() == before + 3


def test_records_that_are_lost_beside_whole_checkpoints_come_back(run: RunDir, tmp_path: Path) -> None:
    """The next copy would end those of the store, too."""
    mirror.copy_run(run.path, f"file://{tmp_path}/store")
    copy = RunDir(tmp_path / run.path.name)
    shutil.copytree(run.path, copy.path)
    whole = {path: path.read_bytes() for path in (copy.metrics, copy.events)}
    copy.metrics.unlink()
    copy.events.write_bytes(whole[copy.events][:100])
    copy.environment.write_text("{}")
    Copies(place_of(f"file://{tmp_path}/store", run.path.name), copy, CheckpointConfig()).bring_newest()
    assert {path: path.read_bytes() for path in whole} == whole
    assert copy.environment.read_text() == "{}", "each start writes a new one"


@pytest.mark.parametrize("key", ["checkpoint.resume", "checkpoint.init_from"])
def test_what_it_began_with_may_be_gone(
    key: str, run: RunDir, tiny_data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run.path, tmp_path / "source")
    overrides = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "checkpoint.every=2", f"{key}={tmp_path}/source"]
    overrides += [f"checkpoint.mirror=file://{tmp_path}/store", "train.steps=8"]
    assert runs.pretrain(overrides, 1) == 0
    (tmp_path / "source").rename(tmp_path / "gone")
    lost = runs.folder(overrides)
    for folder in steps_in(lost.checkpoints):
        shutil.rmtree(folder)
    overrides[-1] = "train.steps=9"
    assert main(["pretrain", *runs.TINY, *overrides, "--dry-run"]) == 0
    assert "the run asks checkpoint.mirror for one first" in capfd.readouterr().err
    assert runs.pretrain(overrides, 1) == 0
    assert [event["step"] for event in runs.events(lost, "started")][-1] == 8


def test_the_best_checkpoint_comes_back_too(run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the newest one is whole; one that is damaged there as well stays lost."""
    lost = RunDir(tmp_path / "run")
    shutil.copytree(run.path, lost.path)
    best = lost.checkpoint(2)
    name_best(lost, 6, 2)
    copies = Copies(place_of(f"file://{tmp_path}/store", "run"), lost, CheckpointConfig(keep=9))
    copies.copy_once()
    (shard,) = best.glob("state/*.safetensors")
    content = shard.read_bytes()
    os.truncate(shard, 100)
    copies.bring_newest()
    assert shard.read_bytes() == content
    assert [event["checkpoint"] for event in runs.events(lost, "set aside")] == [best.name]
    copies.bring_newest()
    assert len(runs.events(lost, "set aside")) == 1, "it is whole"
    (tmp_path / "store" / "run" / "checkpoints" / best.name / "state" / shard.name).write_bytes(b"")
    shutil.rmtree(best)
    copies.bring_newest()
    assert not best.exists()
    assert "the best checkpoint stays lost" in capsys.readouterr().err


def test_an_older_folder_does_not_say_which_checkpoint_is_best(run: RunDir, tmp_path: Path) -> None:
    """Its file does not know what came later; the newest checkpoint does."""
    newer, older = RunDir(tmp_path / "newer"), RunDir(tmp_path / "older")
    for one in (newer, older):
        shutil.copytree(run.path, one.path)
    place, settings = place_of(f"file://{tmp_path}/store", "run"), CheckpointConfig(keep=1)
    name_best(newer, 6, 4)
    Copies(place, newer, settings).copy_once()
    for step in (4, 6):
        shutil.rmtree(older.checkpoint(step))
    name_best(older, 2, 2)
    copies, whole = Copies(place, older, settings), ["step-00000004", "step-00000006"]
    copies.bring_newest()
    copies.copy_once()
    assert store.whole(place.names()) == whole
    assert [folder.name for folder in steps_in(older.checkpoints)] == ["step-00000002", *whole]
    assert older.best.read_text() == "step-00000004\n"
    older.best.unlink()
    shutil.rmtree(older.checkpoint(4))
    copies.bring_newest()
    assert older.checkpoint(4).is_dir(), "the newest one was whole"
    assert older.best.read_text() == "step-00000004\n"


def test_a_newest_checkpoint_without_a_best_one_ends_an_older_one(run: RunDir, tmp_path: Path) -> None:
    older = RunDir(tmp_path / "older")
    shutil.copytree(run.path, older.path)
    shutil.rmtree(older.checkpoint(6))
    name_best(older, 4, 2)
    Copies(Store(f"file://{place(run)}"), older, CheckpointConfig()).bring_newest()
    assert older.checkpoint(6).is_dir()
    assert not older.best.exists()


def test_a_store_without_a_checkpoint_is_nobodys(run: RunDir, tiny_data: Path, tmp_path: Path) -> None:
    """A run that was refused after it had claimed its store leaves its configuration there."""
    there = tmp_path / "store" / "run"
    there.mkdir(parents=True)
    (there / "config.yaml").write_text(run.config.read_text().replace("seed: 1", "seed: 7"))
    copies = Copies(place_of(f"file://{tmp_path}/store", "run"), run, CheckpointConfig())
    copies.check(load_recorded(run.config))
    copies.refuse()
    copies.copy_once()
    with pytest.raises(ConfigError, match="holds a run of this name"):
        copies.refuse()
    (there / "config.yaml").write_text(run.config.read_text().replace("seed: 1", "seed: 7"))
    with pytest.raises(ConfigError, match=r"run\.seed was 7 and is now 1"):
        copies.check(load_recorded(run.config))
