"""Keys on a command line that nothing reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.errors import UserError
from gpt1_ds.config import Config, load
from gpt1_ds.config.unread import EVALUATING, PARTS, PRETRAINING, unread
from gpt1_ds.config.values import keys_of
from gpt1_ds.sweep.key_sweep import make_key_sweep
from gpt1_ds.tasks.registry import kind_of
from tests.helpers import finetuning
from tests.helpers.foreign import make_checkpoint
from tools import small_tasks

NOTHING = [  # (arguments, the key that nothing reads, the key that decides)
    (["objective.probability=0.3"], "objective.probability=0.3", "objective.kind=masked"),
    (["objective.sentinels=50"], "objective.sentinels=50", "objective.kind=spans"),
    (["model.units=64"], "model.units=64", "model.kind=lstm"),
    (["model.kind=lstm", "model.layers=1", "model.ffn=64"], "model.ffn=64", "this run has model.kind=lstm"),
    (["data.text=document_sentences", "data.documents=masked"], "data.documents=masked", "data.text=windows"),
    (["optimizer.momentum=0.9"], "optimizer.momentum=0.9", "optimizer.name=muon"),
    (["optimizer.parameter_scale=false"], "optimizer.parameter_scale=false", "optimizer.name=adafactor"),
    (["optimizer.name=adafactor", "optimizer.betas=[0.8,0.9]"], "optimizer.betas=[0.8,0.9]", "optimizer.name=adamw"),
    (["schedule.decay_fraction=0.3"], "schedule.decay_fraction=0.3", "schedule.kind=wsd"),
    (["schedule.kind=constant", "schedule.final_fraction=0.1"], "schedule.final_fraction=0.1", "schedule.kind=cosine"),
    (["guard.window=64"], "guard.window=64", "guard.z above 0, this run has guard.z=0.0"),
    (["tracking.tags=[a]"], "tracking.tags=[a]", "tracking.wandb=offline or online"),
    (["probes=[{name: sst2, path: x}]"], "probes=", "evaluate"),
]
READ = [
    ["model.mask=bidirectional", "objective.kind=masked", "objective.probability=0.3"],
    ["optimizer.name=muon", "optimizer.momentum=0.9", "optimizer.betas=[0.8,0.9]"],
    ["schedule.kind=wsd", "schedule.decay_fraction=0.3", "schedule.final_fraction=0.1"],
    ["guard.z=6", "guard.window=64", "tracking.wandb=offline", "tracking.tags=[a]", "data.documents=masked"],
    ["model.heads=2", "model.ffn=64", "train.eval_batches=2", "data.path=data/books", "optimizer.lr=1e-4"],
]
TASK = ["task.name=table", "task.kind=classification", "task.path=x", "task.columns={text: a, label: b}"]


@pytest.mark.parametrize(("arguments", "key", "why"), NOTHING, ids=[key for _, key, _ in NOTHING])
def test_what_nothing_reads(arguments: list[str], key: str, why: str) -> None:
    (line,) = unread(load([], arguments), arguments).values()
    assert line.startswith(key)
    assert " changes nothing: " in line
    assert why in line


@pytest.mark.parametrize("arguments", READ, ids=" ".join)
def test_what_is_read(arguments: list[str]) -> None:
    assert not unread(load([], arguments), arguments)


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["objective.kind=spans", "data.path=y", "train.eval_batches=2"], 3),
        (["task.margin=2", "task.pooling=max", "task.mixture_limit=3", "task.target_length=8"], 4),
        (["task.decoding.beams=2", "task.form=text"], 1),  # answers are ranked
        (["task.decoding={beams: 2, min_tokens: 1}"], 2),
        (["task.form=frozen", "optimizer.lr=1", "schedule.kind=linear", "train.epochs=1"], 3),
        (["train.epochs=1", "task.head_dropout=0.2", "optimizer.lr=1", "model.layers=3"], 0),
    ],
)
def test_fine_tuning(arguments: list[str], keys: int) -> None:
    assert len(unread(load([], [*TASK, *arguments]), arguments)) == keys


@pytest.mark.parametrize(
    ("task", "unread_keys", "read"),
    [
        (
            "cola",
            "stride=64 prefix=a score_range=[1,3] regression=value header=false decoding.beams=2 margin=2",
            "too_long=raise head_dropout=0.2 lm_coefficient=0 transfer_layers=1 frozen_layers=1",
        ),
        ("squad", "too_long=raise prefix=a regression=value", "stride=64 head_dropout=0.2"),
        ("conll2003", "too_long=raise stride=64", "head_dropout=0.2"),
        ("stsb", "stride=64", "score_range=[1,3] regression=value"),
        ("rte form=text", "decoding.beams=2 target_length=8 decoded_examples=9 head_dropout=0", "too_long=raise"),
        (
            "rte form=frozen",
            "head_dropout=0.2 lm_coefficient=0.1 transfer_layers=1 frozen_layers=1 train.global_batch=8",
            "",
        ),
        ("summarization form=text", "header=false score_range=[1,3]", "prefix=a decoding.beams=2 target_length=8"),
        (
            "snli kind=sentences sts=y",
            "prefix=a stride=64 head_dropout=0.2 lm_coefficient=0.1",
            "score_range=[1,3] margin=2 loss=triplet too_long=raise",
        ),
    ],
)
def test_keys_of_other_kinds_of_task(task: str, unread_keys: str, read: str) -> None:
    def keys(arguments: str) -> list[str]:
        return [argument if argument.startswith("train.") else f"task.{argument}" for argument in arguments.split()]

    arguments = [*keys(unread_keys), *keys(read)]
    config = load([], [*keys(f"name={task}"), "task.path=x", *arguments])
    assert [*unread(config, arguments, kind_of(config.task))] == [
        argument.partition("=")[0] for argument in keys(unread_keys)
    ]


def test_a_mixture_may_have_tasks_of_all_kinds() -> None:
    arguments = [
        "task.header=false",
        "task.score_range=[1,3]",
        "task.too_long=raise",
        "task.prefix=a",
        "task.stride=64",
    ]
    config = load([], ["task.name=mixture", "task.mixture=[{name: rte, path: x}]", "task.form=text", *arguments])
    assert [*unread(config, arguments, kind_of(config.task))] == ["task.stride"]


def test_the_table_names_keys_that_are_there() -> None:
    keys = keys_of(Config)
    for name in (*PRETRAINING, *EVALUATING, *(key for part in PARTS for key in (part.decides, *part.keys))):
        assert any(key == name or key.startswith(f"{name}.") for key in keys), name


def test_a_run_says_it_of_the_command_line_alone(
    tiny_data: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "mine.yaml").write_text("optimizer: {momentum: 0.9}")
    arguments = ["pretrain", "--dry-run", "-c", "mine.yaml", f"data.path={tiny_data}"]
    assert main(arguments) == 0
    assert "changes nothing" not in capsys.readouterr().err
    assert main([*arguments, "optimizer.momentum=0.8"]) == 0
    assert "optimizer.momentum=0.8 changes nothing: it is read with optimizer.name=muon" in capsys.readouterr().err
    source = make_checkpoint(Path("source"), tiny_data.parent / "tokenizer")
    task = small_tasks.make_task(Path("task"), "single", train=16, dev=4)
    arguments = ["finetune", "--dry-run", *finetuning.TRAINING, *task, f"checkpoint.init_from={source}"]
    assert main([*arguments, "data.path=elsewhere"]) == 0
    assert "data.path=elsewhere changes nothing: it is for pre-training" in capsys.readouterr().err


def test_a_sweep_refuses_it() -> None:
    """Two of its runs would be equal; one value alone is no list."""

    def make(*lists: str) -> None:
        make_key_sweep(lists, lambda arguments: load([], arguments), None, None)

    make("optimizer.momentum=0.9", "optimizer.lr=1e-3,1e-4")
    make("optimizer.name=muon", "optimizer.momentum=0.8,0.9")
    with pytest.raises(UserError, match=r"--sweep: optimizer.momentum=0.8 changes nothing: .*equal") as caught:
        make("optimizer.momentum=0.8,0.9")
    assert len(caught.value.problems) == 1
    with pytest.raises(UserError, match=r"this run has optimizer.name=adamw"):
        make("optimizer.name=adamw,muon", "optimizer.momentum=0.8,0.9")
