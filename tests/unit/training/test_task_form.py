"""Which models answer by a head and which in text, refused in one line before any rank starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.training.configuration import check_task, finetune_config
from tools.small_tasks import make_task

TWO = ["model.kind=encoder_decoder", "model.norm=pre"]


def arguments(folder: Path, tokenizer: Path, *more: str) -> list[str]:
    """A task that begins with nothing."""
    return [*make_task(folder, "pair", 8, 2), f"task.tokenizer={tokenizer}", *more]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (TWO, "task.form=head reads states .* not of model.kind=encoder_decoder; use task.form=text"),
        (["model.mask=prefix"], "task.form=head reads states .* not of model.mask=prefix; use task.form=text"),
        (
            ["task.form=text", "model.mask=bidirectional"],
            "task.form=text: model.mask=bidirectional writes no text; use task.form=head",
        ),
        (
            ["task.form=text", "task.lm_coefficient=0.5"],
            "task.lm_coefficient=0.5: task.form=text has one loss, of the answer; use 0",
        ),
        (
            ["task.form=text", "task.kind=sentences", "task.sts=x"],
            "task.form=text answers a task, task.kind=sentences makes vectors",
        ),
        (
            ["task.form=text", "task.label_smoothing=0.1"],
            "task.label_smoothing=0.1 smooths classes, task.form=text writes tokens; use train.label_smoothing",
        ),
        (["task.form=text", "task.regression=value"], "task.regression=value needs task.form=head; .* leave it out"),
    ],
)
def test_what_does_not_fit(more: list[str], problem: str, span_data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        finetune_config([], arguments(tmp_path, span_data.parent / "tokenizer", *more))
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("more", [TWO, ["model.mask=prefix"], []])
def test_models_that_write_take_any_task(more: list[str], span_data: Path, tmp_path: Path) -> None:
    tokenizer = span_data.parent / "tokenizer"
    config = finetune_config(
        [], arguments(tmp_path, tokenizer, "task.form=text", "train.global_batch=4", "train.micro_batch=4", *more)
    )
    assert config.task is not None
    assert config.task.lm_coefficient == 0
    check_task(config)


def test_an_answer_that_is_too_long(span_data: Path, tmp_path: Path) -> None:
    settings = ["task.form=text", "train.global_batch=4", "train.micro_batch=4", "task.max_length=8"]
    with pytest.raises(ConfigError, match=r"task.form=text: an answer has \d tokens, which leaves too few of the 8"):
        check_task(finetune_config([], arguments(tmp_path, span_data.parent / "tokenizer", *settings)))


def test_a_score_has_no_smoothed_target(span_data: Path, tmp_path: Path) -> None:
    task = make_task(tmp_path, "regression", 8, 2)
    more = [f"task.tokenizer={span_data.parent / 'tokenizer'}", "task.regression=value", "task.label_smoothing=0.1"]
    with pytest.raises(ConfigError, match=r"task.label_smoothing=0.1 smooths classes, the head of this task gives"):
        check_task(finetune_config([], [*task, *more]))
