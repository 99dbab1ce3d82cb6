"""Kernels of a block: what each choice adds, and what the planner makes of it. tests/fakecuda compares with counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpt1_ds.config import Config, load, policy
from gpt1_ds.plan import cuda
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.cuda import block_kernels
from gpt1_ds.plan.machine import PRESETS

BUDGET = Path(__file__).parents[3] / "tools" / "fakecuda" / "budget.json"
EAGER = "train.compile=off"
NO_DROPOUT = ["model.residual_dropout=0", "model.attention_dropout=0"]


def gpt1(*words: str) -> Config:
    return load(["pretrain/gpt1_117m"], ["train.micro_batch=8", *words])


@pytest.mark.parametrize(
    ("words", "kernels"),
    [
        ([], 36),
        (NO_DROPOUT, 34),
        (["train.recompute=block"], 36 + 10),
        ([EAGER], 98),
        ([EAGER, *NO_DROPOUT], 38),
        ([EAGER, "train.recompute=block"], 98 + 73),
        ([EAGER, "model.attention=fused"], 99),
        ([EAGER, "model.attention=fused", *NO_DROPOUT], 39),
        (["model.attention=fused"], 55),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_kernels_per_block(words: list[str], kernels: int) -> None:
    assert sum(block_kernels(gpt1(*words))) == kernels


def test_auto_compiles_on_a_gpu() -> None:
    assert block_kernels(gpt1("train.compile=auto")) == block_kernels(gpt1("train.compile=on"))
    assert block_kernels(gpt1("parallel.zero=3")) == block_kernels(gpt1(EAGER)), "but not under ZeRO 3"


def test_auto_does_not_compile_a_task_that_has_to_repeat() -> None:
    """It has several lengths, and a process that resumes meets them in another order."""
    found = {}
    for task in ([], ["task.loss=ranking"]):
        for train in ([], ["train.deterministic=true"], ["train.deterministic=true", "train.compile=on"]):
            config = load(["finetune/sentences"] if task else [], [*task, *train])
            found[bool(task), len(train)] = policy.is_compiled(config)
    assert [key for key, compiled in found.items() if not compiled] == [(True, 1)]


def test_a_small_micro_batch_waits_for_the_host_where_nothing_is_compiled() -> None:
    def forward(rows: int, *words: str) -> float:
        return passes(rows, "train.cuda_graphs=off", *words)[0]

    assert forward(1, EAGER) == forward(2, EAGER), "the time of the launches"
    assert forward(1) < forward(1, EAGER) / 3
    assert forward(64, EAGER) / forward(64) < 2


def passes(rows: int, *words: str) -> tuple[float, float]:
    """Seconds of (forward, backward) of a micro-batch on one H100."""
    found = cost(gpt1("train.global_batch=64", f"train.micro_batch={rows}", *words), 1, 40478, PRESETS["h100"])
    return found.forward, found.backward


def test_a_graph_hides_the_launches_but_not_the_smallest_kernels() -> None:
    off = "train.cuda_graphs=off"
    forward, backward = (seconds / cuda.KERNEL for seconds in passes(1, EAGER))
    blocks, ends = cuda.block_kernels(gpt1(EAGER)), cuda.end_kernels(gpt1(EAGER))
    assert forward == pytest.approx(12 * blocks[0] + ends[0]), "a micro-batch too small to fill the device"
    tensors = 12 * 12 + 2 - 1  # the positions are no block's, the embedding neither
    assert backward * cuda.KERNEL > (12 * blocks[1] + ends[1]) * cuda.KERNEL + (tensors - 1) * cuda.KERNEL
    assert sum(passes(1, EAGER)) < sum(passes(1, EAGER, off)) / 3
    assert passes(64) == passes(64, off), "a large micro-batch hides them by itself"


def test_a_tiny_model_waits_for_what_the_host_launches_outside_of_graphs() -> None:
    words = ["model.layers=1", "model.width=64", "model.heads=1", "model.context=8", "model.vocab_size=128"]
    machine = PRESETS["h100"]
    launches = machine.speeds_with("bf16", 1).launch * (64 * cuda.REPLAY + cuda.STEP)
    slow = replace(machine, speeds={"bf16": (replace(machine.speeds["bf16"][0], launch=1e-3),)})
    found = cost(gpt1("train.micro_batch=1", *words), 1, 128, slow)
    assert found.pipeline == pytest.approx(launches * 1e-3 / machine.speeds_with("bf16", 1).launch, rel=0.02)


@pytest.mark.parametrize("world", [1, 8])
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_launches_outside_of_graphs_are_those_counted(world: int, mode: str) -> None:
    counted = json.loads(BUDGET.read_text())[str(world)][mode]
    planned = cuda.STEP + counted["micro_batches"] * cuda.REPLAY
    assert abs(planned - counted["launches_outside_graphs"]) <= 0.1 * counted["launches_outside_graphs"]


@pytest.mark.parametrize(
    ("words", "graphs"),
    [
        ([], True),
        ([EAGER], True),
        (["train.recompute=block"], True),
        (["parallel.tensor=2"], True),
        (["train.cuda_graphs=off"], False),
        (["train.precision=fp32"], False),
        (["train.precision=fp16"], False),
        (["parallel.zero=2"], False),
        (["parallel.zero=3"], False),
        (["parallel.pipeline=2"], False),
        (["parallel.assembly=pipeline"], False),
        (["parallel.tensor=2", "parallel.sequence=true"], False),
        (["model.attention=fused"], False),
        (["data.documents=masked"], True),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_which_micro_batches_are_graphs(words: list[str], graphs: bool) -> None:
    config = gpt1(*words)
    assert policy.has_graphs(config) is graphs
    assert cost(config, 8, 40478, PRESETS["h100"]).graphs is graphs
    if config.train.precision != "fp16":
        assert not cost(config, 8, 40478, PRESETS["cpu"]).graphs


@pytest.mark.parametrize("documents", ["joined", "masked"])
def test_the_host_of_an_lstm_waits_for_separate_documents(documents: str) -> None:
    config = gpt1("model.kind=lstm", "model.layers=1", f"data.documents={documents}")
    assert policy.has_graphs(config) is (documents == "joined")


def test_the_mask_costs_exact_attention_little() -> None:
    kinds = ("exact", "fused")
    exact, fused = (cost(gpt1(f"model.attention={kind}"), 1, 40478, PRESETS["h100"]) for kind in kinds)
    assert 1 < exact.step / fused.step < 1.1
