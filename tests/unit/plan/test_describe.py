import json

import pytest

from gpt1_ds.config import load
from gpt1_ds.plan.machine import PRESETS
from gpt1_ds.plan.planning import Planning
from gpt1_ds.plan.report import describe


def test_the_description_names_counts_and_layout() -> None:
    lines = "\n".join(
        describe(load(["pretrain/gpt1_117m"], ["parallel.pipeline=2", "train.micro_batch=8"]), 8, None, None)
    )
    assert "116,537,856 parameters" not in lines, "the vocabulary is not known to `describe` here"
    lines = "\n".join(
        describe(load(["pretrain/gpt1_117m"], ["parallel.pipeline=2", "train.micro_batch=8"]), 8, 40482, 10**9)
    )
    assert "116,537,856 parameters" in lines, "four rows for control symbols"
    assert "753M (PaLM convention), 724M (Megatron, causal)" in lines
    assert "tensor 1 x pipeline 2 x data 4" in lines
    assert "3051758 steps" in lines


@pytest.mark.parametrize(("name", "total"), [("bert_base", "110,106,428"), ("bert_large", "336,226,108")])
def test_an_encoder_counts_all_scores_and_the_pooler(name: str, total: str) -> None:
    """The totals are those of transformers' BertForPreTraining."""
    config = load([f"pretrain/{name}"], ["train.micro_batch=8"])
    lines = "\n".join(describe(config, 8, config.model.vocab_size, None))
    assert f"{total} parameters" in lines
    assert "(PaLM convention)" in lines
    assert "causal" not in lines


@pytest.mark.parametrize("words", [[], ["train.steps=90"]], ids=["epochs", "steps"])
def test_a_task_has_no_count_of_pre_training(words: list[str]) -> None:
    """Its rows are as long as their texts, which only a run knows."""
    lines = list(describe(load(["finetune/cola"], ["train.micro_batch=8", *words]), 1, 40482, None, 90))
    assert not [line for line in lines if "FLOPs" in line]
    (batch,) = [line for line in lines if line.startswith("batch:")]
    assert batch.endswith("tokens per step at most; 90 steps")


@pytest.mark.parametrize(
    ("words", "graphs", "said"),
    [
        (["train.micro_batch=1"], True, "launches: hidden by CUDA graphs once `gpt1-ds doctor --gpu` has passed; "),
        (["train.micro_batch=64", "train.global_batch=512"], True, ""),
        (["train.micro_batch=1", "train.cuda_graphs=off"], False, ""),
    ],
    ids=["small", "large", "off"],
)
def test_the_plan_says_which_launches_graphs_hide(
    words: list[str], graphs: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    planning = Planning(load(["pretrain/gpt1_117m"], words), 8, 40478, None, PRESETS["h100"], 78 << 30)
    assert planning.plan(as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["cost"]["graphs"] is graphs
    assert planning.plan(as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "" not in lines
    assert [line[: len(said)] for line in lines if line.startswith("launches:")] == ([said] if said else [])


def test_evaluations_are_listed_with_what_they_hold() -> None:
    asked = (
        "train.evaluations=[{name: blimp, path: b}, {lm_eval: arc_easy, every: 500}, {name: pdp, path: p, every: 0}]"
    )
    config = load(["pretrain/gpt1_117m"], [asked, "train.micro_batch=8", "train.eval_every=100"])
    (line,) = [one for one in describe(config, 8, 40482, None) if one.startswith("evaluations:")]
    assert "blimp every 100 steps, arc_easy every 500 steps, pdp at the end; meanwhile each rank" in line
    assert "the whole model, 445 MiB" in line
