"""The logger with its real process and real W&B, offline; what happens to whole runs is in tests/faults."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from gpt1_ds.tracking import sinks
from gpt1_ds.tracking.sinks import SegmentStart, WandbLogger
from tests.helpers.processes import command_of, wait_for
from tests.helpers.wandb_files import read_segments


def start(folder: Path, **changes: Any) -> SegmentStart:
    values: dict[str, Any] = {
        **{
            "mode": "offline",
            "id": "abc",
            "name": "n",
            "folder": str(folder),
            "entity": None,
            "project": "p",
            "group": None,
        },
        **{"entity": None, "tags": [], "job_type": "eval", "config": {"world": 2}, "pid": os.getpid(), **changes},
    }
    return SegmentStart(**values)


def record(step: int) -> dict[str, Any]:
    return {"kind": "train", "step": step, "tokens": 10 * step, "loss": 1.0 / step, "batch_fingerprint": "0" * 16}


def services() -> set[psutil.Process]:
    """Returns the services of W&B that this process started; an earlier test in it may have left one."""
    return {child for child in psutil.Process().children(recursive=True) if "wandb-core" in command_of(child)}


def stopped_service(folder: Path, others: set[psutil.Process]) -> psutil.Process:
    """W&B's service, none of the `others`, as soon as it writes, stopped as by a debugger."""
    wait_for(lambda: list(folder.glob("wandb/offline-run-*/run-*.wandb")))
    found = services() - others
    (service,) = (one for one in found if one.parent() not in found)  # a child of it has its name until it is another's
    service.send_signal(signal.SIGSTOP)
    return service


@pytest.fixture
def freeze(tmp_path: Path) -> Iterator[Callable[[], None]]:
    frozen: list[psutil.Process] = []
    others = services()
    yield lambda: frozen.append(stopped_service(tmp_path, others))
    for process in frozen:
        process.kill()


def test_everything_arrives_in_order(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logger = WandbLogger(start(tmp_path, entity="my-team"))
    for step in range(1, 201):
        logger.log(record(step))
    scores = {"kind": "task", "step": 200, "tokens": 2000, "task": "cola", "split": "dev", "loss": 0.5}
    logger.log({**scores, "metrics": {"matthews": 0.25, "f1": None}})
    logger.table("evaluation", [{"task": "a", "accuracy": 0.5}, {"task": "b", "f1": None, "accuracy": 1}])
    logger.table("samples", [])
    figure = tmp_path / "loss.png"
    Image.new("RGB", (3, 2), "crimson").save(figure)
    logger.image("figures/loss", figure)
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "weights").write_bytes(bytes(10))
    logger.reference("checkpoint-abc", tmp_path / "step-1", ["best", "last"], {"step": 1})
    logger.finish({"final/step": 200, "best/loss": 0.005})
    (segment,) = read_segments(tmp_path)
    assert (segment.id, segment.job_type, segment.config["world"], segment.exit_code) == ("abc", "eval", 2, 0)
    assert segment.entity == "my-team"
    assert segment.x_axes == {"tokens": "", "*": "tokens"}
    assert segment.values("train/loss") == [(step, 1.0 / step) for step in range(1, 201)]
    assert segment.values("cola/dev/matthews") == [(200, 0.25)]
    table, image = segment.points[-2:]
    assert table["evaluation.nrows"] == 2
    assert [image[f"figures/loss.{key}"] for key in ("_type", "width", "height")] == ["image-file", 3, 2]
    assert (segment.folder / "files" / image["figures/loss.path"]).read_bytes() == figure.read_bytes()
    staged = [Path(file.local_path) for found in segment.references for file in found.manifest.contents]
    assert all(tmp_path in path.parents for path in staged if path.name), "nothing lies in the home folder"
    assert segment.points[-1]["tokens"] == 2000
    assert not [key for key in segment.points[-1] if key.startswith("samples")]
    assert segment.summary["final/step"] == 200
    assert segment.summary["best/loss"] == 0.005
    (artifact,) = (found for found in segment.references if found.type == "model")
    assert {"best", "last"} <= set(artifact.aliases)
    (file,) = artifact.manifest.contents
    assert file.ref == (tmp_path / "step-1" / "weights").as_uri()
    assert not file.local_path, "nothing is uploaded"
    assert "W&B" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_frozen_service_costs_one_line(
    tmp_path: Path, freeze: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    logger = WandbLogger(start(tmp_path, patience=3.0))
    logger.log(record(1))
    freeze()
    slowest, deadline = 0.0, time.monotonic() + 60
    while logger._process is not None:
        began = time.monotonic()
        logger.log(record(2))
        slowest = max(slowest, time.monotonic() - began)
        assert time.monotonic() < deadline, "nobody noticed"
        time.sleep(0.0005)
    began = time.monotonic()
    logger.finish({})
    assert time.monotonic() - began < 1
    assert slowest < 0.5, "no call waits for W&B"
    time.sleep(0.2)
    lines = [line for line in capfd.readouterr().err.splitlines() if "W&B" in line]
    assert len(lines) == 1, lines


def test_a_frozen_service_at_the_end_is_waited_for_so_long(
    tmp_path: Path, freeze: Callable[[], None], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "FINISH_SECONDS", 1.0)
    logger = WandbLogger(start(tmp_path))
    logger.log(record(1))
    freeze()
    began = time.monotonic()
    logger.finish({})
    assert 1 <= time.monotonic() - began < 8
    lines = [line for line in capfd.readouterr().err.splitlines() if "W&B" in line]
    assert len(lines) == 1, lines
    assert "did not end within 1 s" in lines[0]
