"""`train.profile` on real runs: what it leaves, how much of a step it explains, and that it changes nothing."""

from __future__ import annotations

import gzip
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.common.rundir import RunDir
from tests.helpers import finetuning
from tools import runs, small_tasks

LAYOUTS = {
    "one": (1, []),
    "pp2": (2, ["parallel.pipeline=2"]),
    "tp2-bf16": (2, ["parallel.tensor=2", "train.precision=bf16"]),
}
STEPS = 8
EVENTS = ["train.eval_every=4", "checkpoint.every=5"]  # both fall into the window below
WINDOW = "train.profile=3:7"
STEP = {"data", "forward", "loss", "backward", "reduce", "optimizer", "agreement", "log", "evaluation", "save"}


def arguments_for(layout: str, data: Path, folder: Path, *extra: str) -> list[str]:
    places = [f"data.path={data}", f"run.dir={folder}", f"train.steps={STEPS}"]
    return [*LAYOUTS[layout][1], *EVENTS, *places, *extra]


@pytest.fixture(scope="module")
def undisturbed(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    @cache
    def run(layout: str) -> tuple[dict[int, float], dict[str, str]]:
        arguments = arguments_for(layout, tiny_data, tmp_path_factory.mktemp("plain"))
        assert runs.pretrain(arguments, LAYOUTS[layout][0]) == 0
        assert not runs.folder(arguments).profile.exists()
        return runs.losses(runs.folder(arguments)), runs.weights(runs.folder(arguments))

    return run


def summary_of(run_dir: RunDir) -> dict[str, Any]:
    return json.loads((run_dir.profile / "summary.json").read_text())  # type: ignore[no-any-return]


def events_of(trace: Path) -> list[str]:
    return [event.get("name", "") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]]


def assert_explained(summary: dict[str, Any]) -> None:
    """Phases follow one another, and little of a step lies between them."""
    for rank in summary["ranks"]:
        for step in rank["steps"]:
            assert 0.8 <= sum(step["phases"].values()) / step["seconds"] <= 1.0001


@pytest.mark.slow
def test_a_file_asks_for_it(undisturbed, tiny_data: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = arguments_for("pp2", tiny_data, tmp_path)
    run_dir = runs.folder(arguments)
    run_dir.path.mkdir(parents=True, mode=0o700)
    run_dir.profile_request.touch()  # seen after the first step
    assert runs.pretrain(arguments, 2) == 0
    assert (runs.losses(run_dir), runs.weights(run_dir)) == undisturbed("pp2")
    assert not run_dir.profile_request.exists(), "a request is removed when honoured"
    (event,) = runs.events(run_dir, "profiled")
    assert (event["first"], event["last"], event["folder"]) == (2, 6, str(run_dir.profile))
    assert summary_of(run_dir)["steps"] == [2, 3, 4, 5, 6]
    assert "a CPU has no snapshot of its memory" in run_dir.rank_log(0).read_text()
    traces = [run_dir.profile / f"rank-{rank}.trace.json.gz" for rank in range(2)]
    assert all("step 6" in events_of(trace) for trace in traces)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_changes_nothing_and_explains_the_steps(layout: str, undisturbed, tiny_data: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    ranks = LAYOUTS[layout][0]
    arguments = arguments_for(layout, tiny_data, tmp_path, WINDOW)
    assert runs.pretrain(arguments, ranks) == 0
    run_dir = runs.folder(arguments)
    assert (runs.losses(run_dir), runs.weights(run_dir)) == undisturbed(layout)
    traces = [f"rank-{rank}.trace.json.gz" for rank in range(ranks)]
    assert sorted(path.name for path in run_dir.profile.iterdir()) == [*traces, "summary.json"]
    summary = summary_of(run_dir)
    assert summary["steps"] == [3, 4, 5, 6]
    assert_explained(summary)
    assert set(summary["phases"]) == STEP | ({"send", "receive"} if layout == "pp2" else set())
    with_evaluation = [step["step"] for step in summary["ranks"][0]["steps"] if "evaluation" in step["phases"]]
    assert with_evaluation == [4]
    assert summary["ranks"][0]["timeline"]["step"] in (3, 6), "neither evaluates nor saves"
    for rank, name in enumerate(traces):
        found = events_of(run_dir.profile / name)
        assert [event for event in found if event.startswith("step ")] == ["step 3", "step 4", "step 5", "step 6"]
        passes = sum(event.startswith("backward of micro-batch") for event in found)
        assert passes == 4 * summary["micro_batches"] == (8 if layout.startswith("dp") else 16)
        assert len(summary["ranks"][rank]["memory"]) > 4 * len(STEP) - 8
    assert runs.events(run_dir, "profiled")[0]["last"] == 6
    if layout == "pp2":
        assert_a_pipelines(summary)
    else:
        assert summary["bubble"] is None


def assert_a_pipelines(summary: dict[str, Any]) -> None:
    assert [rank["stage"] for rank in summary["ranks"]] == [0, 1]
    assert summary["bubble"]["ideal"] == pytest.approx(1 / (4 + 1)), "of two stages and four micro-batches"
    assert 0 < summary["bubble"]["measured"] < 1
    first, last = ({name for step in rank["steps"] for name in step["phases"]} for rank in summary["ranks"])
    assert "loss" in last
    assert "loss" not in first, "only the last stage has one"


@pytest.mark.slow
def test_a_window_that_a_stop_cuts_and_a_resume_ends(undisturbed, tiny_data: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = arguments_for("one", tiny_data, tmp_path, WINDOW)
    config = runs.configuration(arguments)
    assert runs.launch.launch("tests.parallel.test_profile:stop_in_step_4", (config,), 1) == 0
    run_dir = runs.folder(arguments)
    assert summary_of(run_dir)["steps"] == [3, 4], "what there is"
    (run_dir.profile / "rank-7.trace.json.gz").touch()  # as of an earlier run on more ranks
    assert runs.pretrain(arguments, 1) == 0
    assert summary_of(run_dir)["steps"] == [5, 6], "what is left"
    assert not (run_dir.profile / "rank-7.trace.json.gz").exists()
    assert (runs.losses(run_dir), runs.weights(run_dir)) == undisturbed("one")
    shutil.rmtree(run_dir.profile)
    assert runs.pretrain([*arguments, "train.steps=10"], 1) == 0
    assert not run_dir.profile.exists(), "the window is past"
    assert runs.pretrain([*arguments, "train.steps=12", "train.profile=11:99"], 1) == 0
    assert summary_of(run_dir)["steps"] == [11, 12], "another window, and no more steps than there are"
    changed = [event["key"] for event in runs.events(run_dir, "changed")]
    assert "train.profile" in changed


def stop_in_step_4(config) -> int:  # type: ignore[no-untyped-def]
    """Runs on every rank: a stop is asked for as step 4 begins."""
    from gpt1_ds.training.batches import Batches
    from gpt1_ds.training.pretraining import pretrain

    following = Batches.next

    def asked(self: Any, state: Any) -> Any:
        if state.step == 3:
            self.run_dir.stop.touch()
        return following(self, state)

    Batches.next = asked  # type: ignore[method-assign]
    return pretrain(config)


def test_a_window_behind_the_last_step_is_said(tiny_data: Path, tmp_path: Path) -> None:
    arguments = arguments_for("one", tiny_data, tmp_path, "train.profile=9:12")
    assert runs.pretrain(arguments, 1) == 0
    run_dir = runs.folder(arguments)
    assert not run_dir.profile.exists()
    assert "train.profile=9:12: the run ends with step 8; nothing is profiled" in run_dir.rank_log(0).read_text()


def test_fine_tuning(tiny_data: Path, tmp_path: Path) -> None:
    task = small_tasks.make_task(tmp_path / "task", "single", train=24, dev=6)
    model = ["model.layers=2", "model.width=32", "model.heads=2", "model.context=48"]
    arguments = [
        *task,
        *model,
        f"task.tokenizer={tiny_data.parent / 'tokenizer'}",
        "train.steps=6",
        "train.profile=2:5",
    ]
    found = []
    for name, extra in (("plain", ["train.profile=null"]), ("profiled", [])):
        place = [f"run.dir={tmp_path / name}", *extra]
        assert finetuning.finetune([*arguments, *place]) == 0
        run_dir = finetuning.folder([*arguments, *place])
        found.append((runs.losses(run_dir), runs.weights(run_dir)))
    assert found[0] == found[1]
    summary = summary_of(run_dir)
    assert summary["steps"] == [2, 3, 4]
    assert_explained(summary)
    assert {"loss", "evaluation"} <= set(summary["phases"]), "of the epoch's end after step 3"


def test_no_space_costs_the_profile_and_not_the_run(undisturbed, tiny_data: Path, tmp_path: Path, small_disk) -> None:  # type: ignore[no-untyped-def]
    disk = small_disk("100k")
    arguments = arguments_for("pp2", tiny_data, tmp_path, WINDOW)
    run_dir = runs.folder(arguments)
    run_dir.create()
    run_dir.profile.symlink_to(disk)
    assert runs.pretrain(arguments, 2) == 0
    assert (runs.losses(run_dir), runs.weights(run_dir)) == undisturbed("pp2")
    log = run_dir.rank_log(0).read_text()
    assert "the profile is not complete" in log
    assert "free some space; training continues" in log
    assert not list(disk.glob("*.trace.json.gz"))
    assert not [path for path in disk.iterdir() if path.name.startswith(".")], "nothing is left behind"
