"""The numbers behind a run page's charts, and the tables beside them."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.config import load, to_yaml
from gpt1_ds.config.task import TaskConfig
from gpt1_ds.report import curves, facts
from gpt1_ds.report.page import embedded, write_report
from gpt1_ds.report.runs import RunStory, read
from tests.unit.report.test_page import run  # noqa: F401
from tests.unit.tracking.test_record import train_record


def records(steps: range, **changes: Any) -> list[dict[str, Any]]:
    return [asdict(train_record(step, **changes)) for step in steps]


def test_hours_are_those_of_training_steps_alone() -> None:
    train = [*records(range(1, 2), step_seconds=36.0), *records(range(11, 12), step_seconds=3.6)]
    assert curves.hours(train) == pytest.approx([0.01, 0.02])
    assert curves.places(train, [0, 6, 11])["hours"] == pytest.approx([0, 0.015, 0.02])
    assert curves.places(train, [6])["tokens"] == [60]


def test_thinning_keeps_every_peak_and_what_is_not_finite() -> None:
    draw = random.Random(1)
    losses: list[float | None] = [draw.gauss(3, 0.1) for _ in range(100_000)]
    losses[70_001], losses[70_002], losses[70_003] = 99.0, None, -5.0
    norms = [draw.gauss(1, 0.1) for _ in losses]
    norms[31_415] = 1000.0
    steps = list(range(1, len(losses) + 1))
    columns = {"step": steps, "tokens": steps, "hours": steps, "loss": losses, "grad_norm": norms}
    thin = curves.thinned(columns, 16_000)
    assert 4_000 < len(thin["step"]) <= 16_000
    assert thin["step"][:200] == steps[:200]
    assert thin["step"] == sorted(thin["step"])
    assert thin["step"][-1] == 100_000
    assert {99.0, None, -5.0} <= set(thin["loss"])
    assert 1000.0 in thin["grad_norm"]
    assert len({len(column) for column in thin.values()}) == 1


def test_a_line_breaks_where_the_log_has_a_gap() -> None:
    assert curves.gaps([*range(1, 20), *range(500, 520)]) == [500]
    assert curves.gaps([1, *range(20, 200, 20)]) == []
    assert curves.gaps([*range(1, 20), *range(100, 1000, 100)]) == [], "another train.log_every is no gap"


def test_text_cannot_leave_the_data() -> None:
    hostile = "</script><script>alert(1)</script><!-- & \u2028"
    text = embedded({"name": hostile})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"name": hostile}
    with pytest.raises(ValueError, match="JSON"):
        embedded(float("nan"))


def test_events_stand_where_they_happened(run: Path) -> None:  # noqa: F811
    lines = [
        {"time": "t0", "event": "started", "step": 0},
        {"time": "t1", "event": "changed", "key": "<i>", "before": 1, "now": 2},
        {"time": "t2", "event": "started", "step": 4, "job": ""},
        {"time": "t3", "event": "set aside", "checkpoint": "step-8", "problem": "x" * 400},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    events = curves.data([read(run)])["runs"][0]["events"]
    assert [(one["kind"], step) for one, step in zip(events["shown"], events["step"], strict=True)] == [
        *(("started", 0), ("changed", 0), ("resumed", 4), ("set aside", 4))
    ]
    assert events["tokens"] == [0, 0, 40, 40]
    assert events["shown"][3]["text"].endswith("(events.jsonl has all)")


def test_losses_that_are_not_finite(run: Path) -> None:  # noqa: F811
    lines = [*records(range(1, 4)), *records(range(4, 6), loss=None, grad_norm=None)]
    lines.append({"kind": "eval", "step": 5, "tokens": 50, "loss": None, "perplexity": None, "bits_per_byte": None})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_report([run]).read_text()
    assert "not finite nats per token" in page
    assert curves.data([read(run)])["runs"][0]["tables"]["train"]["loss"][2:] == [pytest.approx(0.3), None, None]


def test_a_curve_for_each_kind_of_layer(run: Path) -> None:  # noqa: F811
    lines = records(range(1, 4), gradient_norms={"embedding": 1.0, "norms": None}, noise_scale=8.0)
    lines += records(range(4, 5), gradient_norms={"embedding": 2.0, "norms": 0.25})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = curves.data([read(run)])
    chart = {one["name"]: one for one in found["charts"]}
    assert [one["label"] for one in chart["gradient_norms"]["series"]] == ["embedding", "norms"]
    assert chart["gradient_norms"]["log"]
    assert "log" not in chart["loss"]
    assert "weight_norms" not in chart
    table = found["runs"][0]["tables"]["train"]
    assert table["gradient_norms/embedding"] == [1.0, 1.0, 1.0, 2.0]
    assert table["gradient_norms/norms"] == [None, None, None, 0.25]
    assert table["noise_scale"] == [8.0, 8.0, 8.0, None]


def test_a_score_per_split_and_metric_of_a_task(run: Path) -> None:  # noqa: F811
    with open(run / "metrics.jsonl", "a") as file:
        score = {"kind": "task", "step": 8, "tokens": 80, "task": "cola", "split": "dev", "loss": 1.0}
        file.write("\n" + json.dumps({**score, "metrics": {"matthews": 0.25, "accuracy": None}}) + "\n")
    found = curves.data([read(run)])
    assert [one["label"] for one in found["charts"][0]["series"]] == ["dev matthews", "dev accuracy"]
    assert found["runs"][0]["tables"]["task dev matthews"]["score"] == [0.25]
    assert found["runs"][0]["tables"]["task dev accuracy"]["score"] == [None]


def story(run: Path, **sections: dict[str, Any]) -> RunStory:  # noqa: F811
    found = read(run)
    config = replace(
        found.config, **{name: replace(getattr(found.config, name), **keys) for name, keys in sections.items()}
    )  # type: ignore[arg-type]
    return replace(found, config=config)


def test_settings_that_differ_come_first(run: Path) -> None:  # noqa: F811
    rows = facts.settings([story(run), story(run, optimizer={"lr": 0.5}, train={"steps": None, "tokens": 7})])
    assert {row.key for row in rows if row.differs} >= {"optimizer.lr", "train.tokens"}
    assert rows[0].differs
    first_plain = next(number for number, row in enumerate(rows) if not row.differs)
    assert not any(row.differs for row in rows[first_plain:])
    rate = next(row for row in rows if row.key == "optimizer.lr")
    assert rate.values == [rate.default, "0.5"]
    assert rate.changed
    assert next(row for row in rows if row.key == "train.tokens").values[1] == "7"


def test_command_commit_and_machine(run: Path) -> None:  # noqa: F811
    assert facts.command(read(run)).startswith("gpt1-ds pretrain -c '")
    known = {"command": "gpt1-ds pretrain x=1", "commit": "abc", "host": "node-1", "torch": "2.13"}
    (run / "env.json").write_text(json.dumps(known | {"gpt1_ds": {"version": "1", "code": "ff"}}))
    assert facts.command(read(run)) == "gpt1-ds pretrain x=1"
    rows = dict(facts.environment(read(run)))
    assert rows["commit"] == "abc"
    assert rows["host"] == "node-1"
    assert rows["torch"] == "2.13"
    page = write_report([run]).read_text()
    assert "<pre>gpt1-ds pretrain x=1</pre>" in page
    assert "This run does not know" not in page


def test_a_run_without_samples_says_how_to_make_one(run: Path) -> None:  # noqa: F811
    (run / "samples.jsonl").write_text('{"step": 8, "prompt": "It", "text": " \\n \\n"}\n')
    page = write_report([run]).read_text()
    assert "<blockquote><b>It</b></blockquote>" in page, "no blank box"
    assert "the model ended the text at once" in page
    (run / "samples.jsonl").unlink()
    page = write_report([run]).read_text()
    assert "<blockquote" not in page
    assert "gpt1-ds sample --checkpoint" in page


def caption(story: RunStory) -> str:
    (chart,) = [one for one in curves.data([story])["charts"] if one["name"] == "loss"]
    return str(chart["caption"])


def test_the_caption_of_losses_names_what_is_drawn_and_nothing_else(run: Path) -> None:  # noqa: F811
    story = replace(read(run), held_out=[], baselines=[])
    assert caption(story) == "Loss of each logged training batch (with dropout, if there is any)."
    evaluated = replace(story, held_out=[{"step": 100, "tokens": 100, "loss": 4.0}])
    assert "Circles: of a fixed sample of the held-out text (train.eval_batches)" in caption(evaluated)
    assert "Dotted" not in caption(evaluated)
    assert "Dotted" in caption(replace(story, baselines=[{"order": 1, "loss": 5.0, "bits_per_byte": 1.0}]))
    masked = replace(story, train=[{**line, "predicted": 9} for line in story.train])
    assert "Of masked text" in caption(masked)
    assert "pairs" not in caption(masked)


@pytest.mark.parametrize(
    ("coefficient", "said"),
    [
        (0.5, "the task's loss + 0.5 x the language model's on the same texts (task.lm_coefficient)"),
        (0.0, "the task's loss"),
    ],
)
def test_the_parts_of_a_task_loss_are_named(run: Path, coefficient: float, said: str) -> None:  # noqa: F811
    story = read(run)
    task = TaskConfig(name="cola", path="data/cola", lm_coefficient=coefficient)
    assert caption(replace(story, config=replace(story.config, task=task))).endswith(f"Loss of cola: {said}.")


@pytest.mark.parametrize("language_loss", [0.0, 2.5])
def test_a_task_loss_that_is_all_of_the_loss_has_no_chart(run: Path, language_loss: float) -> None:  # noqa: F811
    story = read(run)
    train = [{**line, "task_loss": line["loss"] * (1 + 1e-8) - 0.5 * language_loss} for line in story.train]
    charts = {chart["name"] for chart in curves.data([replace(story, train=train)])["charts"]}
    assert "loss" in charts
    assert ("task_loss" in charts) == (language_loss > 0)


def test_each_of_train_evaluations_has_a_chart(tmp_path: Path) -> None:
    """The metric that decides and its control, over the steps at which they were measured."""
    lines = [asdict(train_record(step)) for step in (1, 2, 3, 4)]
    for step, value in ((2, 0.5), (4, 0.75)):
        metrics = {"accuracy": value, "control": 0.25, "chance": 0.5}
        lines.append(
            {"kind": "score", "step": step, "tokens": 8, "task": "zero-shot/x", "split": "t", "metrics": metrics}
        )
        lines.append(
            {"kind": "score", "step": step, "tokens": 8, "task": "lm-eval/y", "split": "t", "metrics": {"acc": 1}}
        )
    (tmp_path / "config.yaml").write_text(to_yaml(load([], ["run.name=r", "model.vocab_size=300"])))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = curves.data([read(tmp_path)])
    charts = {chart["title"]: chart for chart in data["charts"] if chart["name"].startswith("score_")}
    assert charts.keys() == {"zero-shot/x, accuracy", "lm-eval/y, acc"}
    tables = [data["runs"][0]["tables"][one["table"]] for one in charts["zero-shot/x, accuracy"]["series"]]
    assert [(table["step"], table["score"]) for table in tables] == [([2, 4], [0.5, 0.75]), ([2, 4], [0.25, 0.25])]
    assert "zero-shot/x, while training" in dict(facts.summary(read(tmp_path)))
