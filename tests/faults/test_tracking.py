"""W&B beside real runs: complete and in order after restarts, and never able to disturb the training."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from gpt1_ds.common.rundir import RunDir
from tests.helpers.processes import command_of
from tests.helpers.served import fine_tune
from tests.helpers.wandb_files import Written, read_segments
from tools import runs

KEY = "0123456789abcdef0123456789abcdef01234567"
STEADY = ["schedule.kind=constant", "schedule.warmup_steps=0"]  # a step does not depend on how many there are


def arguments_for(data: Path, folder: Path, *more: str) -> list[str]:
    return [f"data.path={data}", f"run.dir={folder}", *STEADY, "tracking.wandb=offline", *more]


@pytest.fixture(scope="module")
def undisturbed(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses by step of a run without W&B."""
    folder = tmp_path_factory.mktemp("undisturbed")
    arguments = arguments_for(tiny_data, folder, "tracking.wandb=off", "train.steps=40")
    assert runs.pretrain(arguments, 1) == 0
    assert not (runs.folder(arguments).path / "wandb").exists()
    return runs.losses(runs.folder(arguments))


def worker_of(run: runs.Background) -> psutil.Process:
    """The W&B process of rank 0."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        children = [child for rank in run.processes() for child in psutil.Process(rank.pid).children()]
        found[:] = [child for child in children if "gpt1_ds.tracking.wandb" in command_of(child)]
        return bool(found)

    run.wait_for(is_there)
    return found[0]


def service_of(run: runs.Background) -> psutil.Process:
    """W&B's own service, once it writes."""
    worker = worker_of(run)
    run.wait_for(lambda: bool(list(run.run_dir.wandb.glob("offline-run-*/run-*.wandb"))))
    (service,) = (child for child in worker.children() if "wandb-core" in command_of(child))
    return service


def warnings(run_dir: RunDir) -> list[str]:
    lines = run_dir.rank_log(0).read_text().splitlines()
    return [line for line in lines if " INFO gpt1_ds: W&B" in line]


def wait_for_end_of(process: psutil.Process) -> None:
    psutil.wait_procs([process], timeout=240)
    assert not process.is_running()


@pytest.fixture
def background() -> Iterator[Callable[[list[str]], runs.Background]]:
    """A run on one rank that does not outlive a test that fails."""
    started: list[runs.Background] = []

    def begin(arguments: list[str]) -> runs.Background:
        started.append(runs.Background(arguments, 1))
        return started[-1]

    yield begin
    for run in started:
        run.signal(signal.SIGKILL)
        run.thread.join(60)


def stop_after(arguments: list[str], step: int) -> None:
    run = runs.Background(arguments, 1)
    run.wait_for_step(step)
    run.run_dir.stop.touch()
    run.join(90)
    assert run.error is None
    assert run.result == 0


def all_losses(segments: list[Written]) -> list[tuple[int, float]]:
    return [point for segment in segments for point in segment.values("train/loss")]


def test_agreed_stops_lose_and_double_nothing(tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = arguments_for(
        tiny_data, tmp_path / "here", "train.eval_every=7", "tracking.group=g", "tracking.tags=[a,b]"
    )
    stop_after([*arguments, "train.steps=3000"], 3)
    monkeypatch.chdir(tmp_path)
    elsewhere = [*arguments, "run.dir=./here/../here"]
    stop_after([*elsewhere, "train.steps=3000"], runs.last_step(runs.folder(arguments)) + 3)
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = [*arguments, f"run.dir={tmp_path / 'there'}"]
    last = runs.last_step(runs.folder(moved)) + 5
    assert runs.pretrain([*moved, f"train.steps={last}"], 1) == 0
    run_dir = runs.folder(moved)
    segments = read_segments(run_dir.path)
    assert len(segments) == 3
    assert {segment.id for segment in segments} == {(run_dir.wandb / "id").read_text().strip()}
    assert [segment.config["segment"] for segment in segments] == [1, 2, 3]
    assert [segment.config["jobs"] for segment in segments] == [[""], ["", ""], ["", "", ""]]
    assert [segment.exit_code for segment in segments] == [0, 0, 0]
    assert all_losses(segments) == list(runs.losses(run_dir).items())
    assert [step for step, _ in all_losses(segments)] == list(range(1, last + 1))
    tokens = [point["tokens"] for segment in segments for point in segment.points]
    assert tokens == sorted(tokens)
    evaluated = [step for segment in segments for step, _ in segment.values("eval/loss")]
    assert evaluated == [step for step in range(1, last + 1) if step % 7 == 0 or step == last]
    assert [segment.summary["outcome"] for segment in segments] == ["user", "user", "done"]
    assert segments[-1].summary["final/step"] == last
    assert (segments[0].group, segments[0].tags, segments[0].job_type) == ("g", ["a", "b"], "pretrain")
    assert not warnings(run_dir)


def test_after_a_kill_steps_stand_twice_with_the_same_values(
    background: Callable[[list[str]], runs.Background], tiny_data: Path, tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    arguments = arguments_for(tiny_data, tmp_path, "train.steps=3000", "checkpoint.every=25")
    run = background(arguments)
    worker = worker_of(run)
    service_of(run)
    run.wait_for_step(60)
    run.signal(signal.SIGKILL)
    run.join()
    wait_for_end_of(worker)
    killed_at = runs.last_step(run.run_dir)
    last = killed_at + 5
    assert runs.pretrain([*arguments, f"train.steps={last}"], 1) == 0
    first, second = read_segments(run.run_dir.path)
    assert first.id == second.id
    assert (first.exit_code, first.summary["outcome"]) == (1, "killed")
    before, after = dict(first.values("train/loss")), dict(second.values("train/loss"))
    assert list(before) == list(range(1, len(before) + 1)), "none is lost, none is there twice in one segment"
    assert len(before) >= killed_at - 2, "all but what was on its way"
    assert list(after) == list(range(min(after), last + 1))
    assert min(after) <= len(before), "steps after the last checkpoint are repeated"
    assert all(before[step] == after[step] for step in before.keys() & after.keys())
    assert all((before | after)[step] == loss for step, loss in undisturbed.items())


@pytest.mark.parametrize("victim", ["service", "worker"])
def test_its_processes_are_killed(
    victim: str,
    background: Callable[[list[str]], runs.Background],
    tiny_data: Path,
    tmp_path: Path,
    undisturbed: dict[int, float],
) -> None:
    run = background(arguments_for(tiny_data, tmp_path, "train.steps=100000", "checkpoint.every=0"))
    service = service_of(run)
    (service if victim == "service" else worker_of(run)).kill()
    run.wait_for(lambda: bool(warnings(run.run_dir)))
    seen = runs.last_step(run.run_dir)
    run.wait_for_step(max(seen + 5, 40))
    run.run_dir.stop.touch()
    run.join()
    assert run.result == 0
    assert len(warnings(run.run_dir)) == 1
    losses = runs.losses(run.run_dir)
    assert {step: losses[step] for step in undisturbed} == undisturbed


def test_its_disk_is_full(tiny_data: Path, tmp_path: Path, small_disk, undisturbed: dict[int, float]) -> None:  # type: ignore[no-untyped-def]
    arguments = arguments_for(tiny_data, tmp_path, "train.steps=40")
    disk = small_disk("256k")
    run_dir = runs.folder(arguments)
    run_dir.path.mkdir(mode=0o700)
    run_dir.wandb.symlink_to(disk)
    (disk / "id").write_text("0123456789abcdef\n")
    room = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(room.f_bavail * room.f_frsize - 24 * 1024))
    assert runs.pretrain(arguments, 1) == 0
    assert len(warnings(run_dir)) == 1
    assert "no space left" in warnings(run_dir)[0].lower()
    assert runs.losses(run_dir) == undisturbed


class Refuses(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_error(401)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Not to the terminal."""


@pytest.fixture
def refusing_server() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize("trouble", ["no key", "malformed key", "wrong key", "no network"])
def test_a_server_that_is_not_there_or_refuses(
    trouble: str,
    tiny_data: Path,
    tmp_path: Path,
    program,
    refusing_server: str,
    undisturbed: dict[int, float],
) -> None:  # type: ignore[no-untyped-def]
    """The segment is then written offline, with every point."""
    variables = {
        "no key": {"WANDB_BASE_URL": refusing_server},
        "malformed key": {"WANDB_BASE_URL": refusing_server, "WANDB_API_KEY": "not a key!"},
        "wrong key": {"WANDB_BASE_URL": refusing_server, "WANDB_API_KEY": KEY},
        "no network": {
            **{"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": KEY},
            "WANDB_SERVICE": "of a notebook",  # which has W&B's library in use
        },
    }[trouble]
    arguments = arguments_for(tiny_data, tmp_path / "runs", "tracking.wandb=online", "train.steps=40")
    environment = {**variables, "HOME": str(tmp_path), "NETRC": os.devnull}
    result = program("pretrain", *runs.TINY, *arguments, **environment)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if "W&B" in line]
    assert len(lines) == 1, result.stderr
    assert "cannot be reached" in lines[0]
    run_dir = runs.folder(arguments)
    (segment,) = read_segments(run_dir.path)
    assert dict(segment.values("train/loss")) == runs.losses(run_dir) == undisturbed
    assert segment.exit_code == 0
    assert not list(run_dir.wandb.glob("run-*")), "the failed attempt leaves nothing"
    for path in run_dir.path.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_fine_tuning_shows_its_scores_and_where_its_checkpoints_lie(tiny_data: Path, tmp_path: Path) -> None:
    path = fine_tune("single", tiny_data.parent / "tokenizer", tmp_path / "task", "tracking.wandb=offline")
    (segment,) = read_segments(path)
    run_dir = RunDir(path)
    assert segment.job_type == "finetune"
    best = int(run_dir.best.read_text().strip().removeprefix("step-"))
    assert segment.summary["best/step"] == best
    scores = dict(segment.values("table/dev/accuracy"))
    assert len(scores) == len(segment.values("table/dev/accuracy")), "the best is not there twice"
    assert segment.summary["best/score"] == scores[best] == max(scores.values())
    assert segment.summary["best/table/dev/accuracy"] == scores[best]
    (rows,) = (point["evaluation.nrows"] for point in segment.points if "evaluation.nrows" in point)
    assert rows == len(json.loads(run_dir.evaluation.read_text()))
    places = {
        alias: Path(artifact.manifest.contents[0].ref.removeprefix("file://"))
        for artifact in segment.references
        if artifact.type == "model"
        for alias in artifact.aliases
    }
    assert run_dir.checkpoint(best).resolve() in places["best"].parents
    assert run_dir.checkpoint(runs.last_step(run_dir)).resolve() in places["last"].parents
