"""Kernels of a block: what each choice adds, and what the planner makes of it. tests/fakecuda compares with counts."""

from __future__ import annotations

import pytest

from gpt1_ds.config import Config, load
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.cuda import kernels_per_block
from gpt1_ds.plan.machine import PRESETS

EAGER = "train.compile=off"
NO_DROPOUT = ["model.residual_dropout=0", "model.attention_dropout=0"]


def gpt1(*words: str) -> Config:
    return load(["pretrain/gpt1_117m"], ["train.micro_batch=8", *words])


@pytest.mark.parametrize(
    ("words", "kernels"),
    [
        ([], 38),
        (NO_DROPOUT, 36),
        (["train.recompute=block"], 38 + 10),
        ([EAGER], 134),
        ([EAGER, *NO_DROPOUT], 38),
        ([EAGER, "train.recompute=block"], 134 + 108),
        ([EAGER, "model.attention=fused"], 133),
        ([EAGER, "model.attention=fused", *NO_DROPOUT], 37),
        (["model.attention=fused"], 56),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_kernels_per_block(words: list[str], kernels: int) -> None:
    assert kernels_per_block(gpt1(*words)) == kernels


def test_auto_compiles_on_a_gpu() -> None:
    assert kernels_per_block(gpt1("train.compile=auto")) == kernels_per_block(gpt1("train.compile=on"))
    assert kernels_per_block(gpt1("parallel.zero=3")) == kernels_per_block(gpt1(EAGER)), "but not under ZeRO 3"


def test_a_small_micro_batch_waits_for_the_host_where_nothing_is_compiled() -> None:
    def forward(rows: int, *words: str) -> float:
        config = gpt1("train.global_batch=64", f"train.micro_batch={rows}", *words)
        return cost(config, 1, 40478, PRESETS["h100"]).forward

    assert forward(1, EAGER) == forward(2, EAGER), "the time of the launches"
    assert forward(1) < forward(1, EAGER) / 3
    assert forward(64, EAGER) / forward(64) < 2


def test_the_mask_costs_exact_attention_little() -> None:
    kinds = ("exact", "fused")
    exact, fused = (cost(gpt1(f"model.attention={kind}"), 1, 40478, PRESETS["h100"]) for kind in kinds)
    assert 1 < exact.step / fused.step < 1.1
