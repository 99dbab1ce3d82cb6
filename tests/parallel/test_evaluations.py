"""`train.evaluations` on real ranks: what a run measures while it trains is what `evaluate` finds in its checkpoints,
on every layout; and the run is to the bit the one that measures nothing, also after a kill.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.launcher import launch
from tests.helpers.harness_tasks import LAST, write_task
from tools import runs

HARNESS = "lm-eval/local_lambada"


@pytest.fixture(scope="module")
def overrides(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A run of 8 steps whose questions are three passages, measured every two or three steps."""
    folder = tmp_path_factory.mktemp("evaluations")
    (folder / "lambada.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LAST))
    probe = f"{{name: lambada, path: {folder / 'lambada.jsonl'}, every: 2}}"
    task = f"{{lm_eval: {write_task(folder, 'lambada')}, every: 3}}"
    return [
        *(f"data.path={tiny_data}", f"run.dir={folder}", "train.steps=8", "checkpoint.every=4", "checkpoint.keep=9"),
        *(f"train.evaluations=[{probe}, {task}]", "model.residual_dropout=0.1", "train.eval_every=5"),
    ]


def run(overrides: list[str], name: str, ranks: int = 1) -> RunDir:
    assert runs.pretrain([*overrides, f"run.name={name}"], ranks) == 0
    return runs.folder([*overrides, f"run.name={name}"])


@pytest.fixture(scope="module")
def watched(overrides: list[str]) -> RunDir:
    return run(overrides, "watched")


def scores(run_dir: RunDir) -> dict[tuple[str, int], dict[str, Any]]:
    found = [line for line in read_jsonl(run_dir.metrics) if line["kind"] == "score"]
    keys = [(line["task"], line["step"]) for line in found]
    assert len(set(keys)) == len(keys), "every evaluation is made once"
    return {key: line["metrics"] for key, line in zip(keys, found, strict=True)}


def states(run_dir: RunDir) -> dict[str, Any]:
    """The sha256 of every file of weights and moments."""
    return {
        f"{folder.name}/{file}": facts["sha256"]
        for folder in steps_in(run_dir.checkpoints)
        for file, facts in manifest.read(folder)["files"].items()
        if file.startswith("state/")
    }


def lines(run_dir: RunDir, kind: str) -> list[tuple[Any, ...]]:
    keys = {"train": ("step", "loss", "grad_norm", "batch_fingerprint"), "eval": ("step", "loss")}[kind]
    return [tuple(line[key] for key in keys) for line in read_jsonl(run_dir.metrics) if line["kind"] == kind]


def test_a_run_is_to_the_bit_the_one_that_measures_nothing(overrides: list[str], watched: RunDir) -> None:
    plain = run([*overrides, "train.evaluations=[]"], "plain")
    assert states(watched) == states(plain)
    assert len(states(plain)) > 2
    for kind in ("train", "eval"):
        assert lines(watched, kind) == lines(plain, kind)
    assert {key for key in scores(watched) if key[0] != HARNESS} == {("zero-shot/lambada", n) for n in (2, 4, 6, 8)}
    assert {key for key in scores(watched) if key[0] == HARNESS} == {(HARNESS, n) for n in (3, 6, 8)}


def test_a_checkpoint_has_the_scores_of_its_step(overrides: list[str], watched: RunDir, tmp_path: Path) -> None:
    from gpt1_ds.config import ProbeConfig

    config = runs.configuration(overrides)
    (probe, _) = config.train.evaluations
    asked = [*overrides, f"probes=[{{name: lambada, path: {probe.path}}}]"]
    assert runs.configuration(asked).probes == [ProbeConfig(name="lambada", path=probe.path)]
    found = tmp_path / "eval.json"
    task = (runs.configuration(asked), steps_in(watched.checkpoints), found, False, False)
    assert launch.launch("gpt1_ds.evaluation.evaluate:evaluate", task, 1) == 0
    told = {entry["step"]: entry["metrics"] for entry in json.loads(found.read_text())}
    assert told == {step: scores(watched)["zero-shot/lambada", step] for step in (4, 8)}


@pytest.mark.parametrize("layout", [["parallel.tensor=2"], ["parallel.pipeline=2"], ["parallel.zero=3"]])
def test_every_layout_measures_the_same(layout: list[str], overrides: list[str], watched: RunDir) -> None:
    name = layout[0].replace("parallel.", "").replace("=", "")
    found, one = scores(run([*overrides, *layout], name, 2)), scores(watched)
    assert found.keys() == one.keys()
    for key, metrics in one.items():
        assert found[key] == pytest.approx(metrics, rel=1e-4), key


def test_a_run_that_was_killed_measures_what_is_missing_once(overrides: list[str], watched: RunDir) -> None:
    background = runs.Background([*overrides, "run.name=killed"], 1)
    background.wait_for_step(6)
    background.signal(signal.SIGKILL)
    background.join()
    killed = run(overrides, "killed")
    assert scores(killed) == scores(watched)
    assert states(killed) == states(watched)


def test_the_best_by_any_measure_stays(overrides: list[str], watched: RunDir) -> None:
    named = "local_lambada.perplexity"
    best = run([*overrides, f"checkpoint.best={named}", "checkpoint.every=0", "checkpoint.keep=1"], "best")
    values = {step: metrics["perplexity"] for (task, step), metrics in scores(watched).items() if task == HARNESS}
    step = min(values, key=values.__getitem__)
    folder = best.checkpoint(step)
    assert best.best.read_text() == f"{folder.name}\n"
    facts = manifest.read(folder)
    assert (facts["best"], facts["best_measure"]) == ({"step": step, "score": -values[step]}, named)
    run([*overrides, "checkpoint.best=lambada.accuracy", "train.steps=9"], "best")
    assert best.best.read_text() == f"{best.checkpoint(9).name}\n", "values of another measure do not count"
    run([*overrides, "checkpoint.best=null", "train.steps=10"], "best")
    assert not best.best.exists()


def test_a_run_that_resumes_anothers_checkpoint_keeps_its_own_best(overrides: list[str]) -> None:
    """Though the other's was better: it is not in this run's folder."""
    plain = [
        *overrides,
        "train.evaluations=[]",
        "train.eval_every=2",
        "checkpoint.best=eval.loss",
        "schedule.warmup_steps=0",
    ]
    before = run([*plain, "optimizer.lr=0.01"], "before")
    after = run([*plain, "train.steps=12", "optimizer.lr=10", f"checkpoint.resume={before.path}"], "after")
    losses = {line["step"]: line["loss"] for line in read_jsonl(after.metrics) if line["kind"] == "eval"}
    assert min(losses.values()) > min(line["loss"] for line in read_jsonl(before.metrics) if line["kind"] == "eval")
    assert after.best.read_text() == f"{after.checkpoint(min(losses, key=losses.__getitem__)).name}\n"


def test_a_linear_model_of_the_states_is_that_of_the_checkpoint(overrides: list[str], tmp_path: Path) -> None:
    """On one rank and on two; what `finetune` with task.form=frozen finds in the last checkpoint."""
    from gpt1_ds.training.configuration import finetune_config

    rows = "".join(f"{name} {part},{part}\n" for name in "abcdefgh" for part in ("module", "object"))
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{rows}")
    task = tmp_path / "task.yaml"
    table = f"name: table, path: {tmp_path}, kind: classification, columns: {{text: text, label: label}}"
    task.write_text(f"task: {{{table}, answer: labelled}}\n")
    asked = [*overrides, f"train.evaluations=[{{linear: {task}, every: 2}}]", "train.steps=4"]
    one, two = run(asked, "linear"), run([*asked, "parallel.tensor=2"], "linear2", 2)
    assert scores(one).keys() == {("linear/table", 2), ("linear/table", 4)}
    assert scores(two) == scores(one)
    more = ["task.form=frozen", f"checkpoint.init_from={one.path}", f"run.dir={tmp_path}", "run.name=frozen"]
    config = finetune_config([str(task)], more)
    assert launch.launch("gpt1_ds.training.finetuning:finetune", (config,), 1) == 0
    (entry,) = json.loads((tmp_path / "frozen/eval.json").read_text())
    assert entry["metrics"] == scores(one)["linear/table", 4]


def slowly(overrides: list[str]) -> int:
    """Runs on the rank: every sequence is a batch of its own, which takes half a second."""
    import time

    from gpt1_ds.evaluation import probes
    from gpt1_ds.model.build import DenseModel
    from gpt1_ds.training.pretraining import pretrain

    hidden = DenseModel.hidden

    def slow(self: DenseModel, *arguments: Any) -> Any:
        time.sleep(0.5)
        return hidden(self, *arguments)

    DenseModel.hidden = slow  # type: ignore[method-assign]
    probes.neighbours = lambda lengths, _: iter([number] for number in range(len(lengths)))
    return pretrain(runs.configuration(overrides))


def test_a_long_evaluation_is_no_hang(overrides: list[str]) -> None:
    """It takes four seconds, twice as long as a rank may go without progress."""
    probe = next(override for override in overrides if override.startswith("train.evaluations="))
    (asked, _) = runs.configuration([probe]).train.evaluations
    only = f"train.evaluations=[{{name: lambada, path: {asked.path}, every: 0}}]"
    long = [*overrides, only, "run.name=long", "guard.step_timeout=2", "train.steps=2", "train.eval_every=0"]
    assert launch.launch("tests.parallel.test_evaluations:slowly", (long,), 1) == 0
    assert list(scores(runs.folder(long))) == [("zero-shot/lambada", 2)]
