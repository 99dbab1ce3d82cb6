"""A run whose checkpoints also go to an object store outlives the loss of its disk, and of the store."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.verify import verify_files
from gpt1_ds.cli import main
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.rundir import RunDir
from tests.helpers.object_store import ObjectStore
from tools import runs


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("store") / "log") as server:
        yield server


def steps_there(server: ObjectStore, below: str) -> list[str]:
    return [name.split("/")[1] for name in server.names(below) if name.endswith(manifest.NAME)]


def test_a_lost_disk_loses_nothing(object_store: ObjectStore, tiny_data: Path, tmp_path: Path) -> None:
    """A run that is killed and whose disk is lost ends on another disk as an undisturbed one does, to the bit."""
    usual = ["train.steps=80", "checkpoint.every=10", "checkpoint.keep=2", f"data.path={tiny_data}"]
    plain, mirrored = [*usual, f"run.dir={tmp_path / 'plain'}"], [*usual, "checkpoint.mirror=s3://runs/lost"]
    assert runs.pretrain(plain, 2) == 0
    first = runs.Background(
        [*mirrored, f"run.dir={tmp_path / 'first'}"], 2, runs.with_variables(object_store.environment)
    )
    first.wait_for(lambda: bool(steps_there(object_store, f"lost/{first.run_dir.path.name}")))
    first.signal(signal.SIGKILL)
    first.join()
    shutil.rmtree(tmp_path / "first")
    mirrored = [*mirrored, f"run.dir={tmp_path / 'second'}"]
    assert runs.with_variables(object_store.environment)(mirrored, 2) == 0
    second = runs.folder(mirrored)
    assert len(runs.events(second, "brought back")) == 1
    assert runs.losses(second) == runs.losses(runs.folder(plain))
    assert runs.weights(second) == runs.weights(runs.folder(plain))
    there = f"lost/{second.path.name}"
    assert steps_there(object_store, there) == ["step-00000070", "step-00000080"]
    assert {"config.yaml", "metrics.jsonl", "events.jsonl"} <= set(object_store.names(there))
    assert second.metrics.read_bytes() == object_store.system().cat(f"runs/{there}/metrics.jsonl")


def test_a_store_that_goes_away_stops_no_run(tiny_data: Path, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    """The run says so and ends well; what the store lacks is copied later by hand."""
    arguments = [
        f"data.path={tiny_data}",
        f"run.dir={tmp_path}",
        "checkpoint.mirror=s3://runs/away",
        "train.steps=100000",
    ]
    server = ObjectStore(tmp_path / "log")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        with server:
            run = runs.Background([*arguments, "checkpoint.every=20"], 1, runs.with_variables(server.environment))
            run.wait_for(lambda: bool(runs.events(run.run_dir, "copied")))
        run.wait_for(lambda: bool(runs.events(run.run_dir, "copy failed")))
        run.run_dir.stop.touch()
        run.join()
        assert run.result == 0
        assert "was not copied: s3://runs/away" in run.run_dir.rank_log(0).read_text()
        for folder in steps_in(run.run_dir.checkpoints):
            verify_files(folder, manifest.read(folder))
        with server:
            assert main(["checkpoint", "mirror", str(run.run_dir.path), "--to", "s3://runs/away"]) == 0
            assert (
                main(["checkpoint", "fetch", f"s3://runs/away/{run.run_dir.path.name}", "--out", str(tmp_path / "b")])
                == 0
            )
            assert runs.weights(RunDir(tmp_path / "b")) == runs.weights(run.run_dir)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("s3://nobucket/x", "s3://nobucket/x"),
        ("strange://a/b", "checkpoint.mirror=strange://a/b: Protocol not known: strange; look at the address"),
        ("runs/here", "checkpoint.mirror='runs/here' is no address; write s3://BUCKET/FOLDER"),
        ("s3://key:secret@runs/x", "checkpoint.mirror: this is an address with a password or a signature"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_before_the_first_step(
    address: str, message: str, object_store: ObjectStore, tiny_data: Path, tmp_path: Path
) -> None:
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path}", f"checkpoint.mirror={address}"]
    with pytest.raises(UserError) as caught:
        runs.with_variables(object_store.environment)(arguments, 1)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
