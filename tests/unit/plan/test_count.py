import itertools
import random

from gpt1_ds.config import load
from gpt1_ds.config.model import ModelConfig
from gpt1_ds.plan.count import flops_per_token, parameter_shapes, parameters, stage_flops
from gpt1_ds.plan.dryrun import describe
from gpt1_ds.plan.layout import balance

GPT1 = ModelConfig(layers=12, width=768, heads=12, context=512)


def test_gpt1_by_hand() -> None:
    block = 4 * 768 * 768 + 4 * 768 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    assert parameters(GPT1, 40478) == 40478 * 768 + 512 * 768 + 12 * block == 116_534_784
    assert len(parameter_shapes(GPT1, 40478)) == 146
    weights = 12 * 12 * 768**2 + 40478 * 768
    assert flops_per_token(GPT1, 40478) == 6 * weights + 12 * 12 * 512 * 768 == 752_753_664
    assert flops_per_token(GPT1, 40478, causal=True) == 6 * weights + 6 * 12 * 512 * 768 == 724_442_112


def test_the_cut_is_by_operations_and_optimal() -> None:
    costs = stage_flops(GPT1, 40478)
    assert balance(costs, 2) == [0, 10, 15], "8 layers, then 4 and the head, which is worth 3.95"
    assert balance(costs, 4) == [0, 6, 10, 14, 15], "4, 4, 4 and the head alone"
    draw = random.Random(0)
    for _ in range(50):
        costs = [draw.randint(0, 9) for _ in range(draw.randint(3, 9))]
        parts = draw.randint(1, len(costs))
        cuts = balance(costs, parts)
        assert cuts[0] == 0
        assert cuts[-1] == len(costs)
        assert all(a < b for a, b in itertools.pairwise(cuts))
        best = min(
            max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *inner, len(costs))))
            for inner in itertools.combinations(range(1, len(costs)), parts - 1)
        )
        assert max(sum(costs[a:b]) for a, b in itertools.pairwise(cuts)) == best


def test_the_description_names_counts_and_layout() -> None:
    lines = "\n".join(describe(load(["pretrain/gpt1_117m"], ["parallel.pipeline=2"]), 8, None, None))
    assert "116,537,856 parameters" not in lines, "the vocabulary is not known to `describe` here"
    lines = "\n".join(describe(load(["pretrain/gpt1_117m"], ["parallel.pipeline=2"]), 8, 40482, 10**9))
    assert "116,537,856 parameters" in lines, "four rows for control symbols"
    assert "753M (PaLM convention), 724M (Megatron, causal)" in lines
    assert "tensor 1 x pipeline 2 x data 4" in lines
    assert "3051758 steps" in lines
