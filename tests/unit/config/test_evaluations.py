"""What is measured while a run trains: its items, how often each is due, and the measure of the best checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import load, to_yaml
from gpt1_ds.config.evaluations import EvaluationConfig, measured
from gpt1_ds.training import resume

BOTH = "[{name: blimp, path: b, limit: 1k, every: 5}, {lm_eval: arc_easy, limit: 9}]"


def test_items_are_read_and_written(tmp_path: Path) -> None:
    config = load([], [f"train.evaluations={BOTH}", "checkpoint.best=blimp.accuracy"])
    assert config.train.evaluations == [
        EvaluationConfig(name="blimp", path="b", limit=1000, every=5),
        EvaluationConfig(lm_eval="arc_easy", limit=9),
    ]
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    assert load([str(tmp_path / "c.yaml")], ["run.name=run"]) == config


def test_each_is_due_at_its_own_steps_and_at_the_end() -> None:
    def due(every: int | None, eval_every: int) -> list[int]:
        one = EvaluationConfig(name="blimp", path="b", every=every)
        return [step for step in range(1, 8) if one.is_due(step, 7, eval_every)]

    assert due(3, 2) == [3, 6, 7]
    assert due(None, 2) == [2, 4, 6, 7]
    assert due(0, 2) == due(None, 0) == [7]


def test_a_run_that_continues_may_measure_something_else() -> None:
    other = [f"train.evaluations={BOTH}", "checkpoint.best=eval.loss"]
    resume.check("runs/x", resume.changes(load(), load([], other)))


def test_measures_of_a_best_checkpoint() -> None:
    items = load([], [f"train.evaluations={BOTH}"]).train.evaluations
    assert measured(items, is_masked=False) == {"eval.loss": False, "blimp.accuracy": True}
    assert measured([], is_masked=True) == {"eval.loss": False, "eval.masked_accuracy": True}
    load([], [f"train.evaluations={BOTH}", "checkpoint.best=arc_easy.acc"])  # known when its library has loaded it


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train.evaluations=[{name: blmp, path: x}]"], "train.evaluations: name=blmp is no zero-shot probe"),
        (["train.evaluations=[{name: blimp}]"], "train.evaluations: blimp has no path; name the folder"),
        (["train.evaluations=[{name: cola, path: x, every: -1}]"], "every=-1 of cola is negative; use 0"),
        (["train.evaluations=[{lm_eval: a, name: cola}]"], "lm_eval=a has only limit and every beside it"),
        (["train.evaluations=[{lm_eval: a, limit: 0}]"], "limit=0 of a must be at least 1"),
        (["train.evaluations=[{lm_eval: 'a,b'}]"], "lm_eval=a,b must name one task"),
        (["train.evaluations=[{linear: a, lm_eval: b}]"], "lm_eval=b has only limit and every beside it"),
        (
            ["train.evaluations=[{linear: finetune/sst2}]", "model.mask=prefix", "objective.kind=prefix"],
            "train.evaluations: a linear model reads the states of causal and bidirectional models",
        ),
        (
            ["checkpoint.best=blimp.accuracy"],
            "checkpoint.best=blimp.accuracy is not measured; choose eval.loss, or add",
        ),
        (
            ["checkpoint.best=loss", "train.evaluations=[{name: cola, path: x}]"],
            "checkpoint.best=loss is not measured; choose eval.loss, cola.matthews",
        ),
        (
            ["train.evaluations=[{name: cola, path: x}]", "task.name=sst2", "task.path=x"],
            "train.evaluations asks the language model of pre-training (cola); fine-tuning",
        ),
        (
            ["checkpoint.best=eval.loss", "task.name=sst2", "task.path=x"],
            "checkpoint.best=eval.loss is for pre-training",
        ),
    ],
)
def test_mistakes(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load([], arguments)
    (line,) = caught.value.problems
    assert says in line
