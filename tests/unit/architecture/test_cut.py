import itertools
import random

import pytest

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.count import balance, pipeline_cuts
from gpt1_ds.architecture.head import NEXT_SENTENCE, HeadSpec
from gpt1_ds.config import load
from gpt1_ds.config.model import ModelConfig

BERT = load(["model/bert_base"]).model
GPT1 = ModelConfig(layers=12, width=768, heads=12, context=512)


def test_the_cut_is_by_operations_and_optimal() -> None:
    model = architecture(GPT1, 40478)
    assert pipeline_cuts(model, 2) == [0, 10, 15], "8 layers, then 4 and the head, which is worth 3.95"
    assert pipeline_cuts(model, 4) == [0, 6, 10, 14, 15], "4, 4, 4 and the head alone"
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


def test_a_thousand_layers_in_many_stages_are_cut_in_seconds() -> None:
    cuts = balance([1.0] * 1024 + [3.5], 32)
    assert {b - a for a, b in itertools.pairwise(cuts[:-1])} == {32, 33}
    assert cuts[-2:] == [995, 1025], "the last one is worth 3.5"


@pytest.mark.parametrize("stages", range(1, 13))
def test_joined_layers_stay_on_one_stage(stages: int) -> None:
    """GPT-1's task head and tied head would be cut apart at 5 and 6 stages."""
    model = architecture(GPT1, 40478, HeadSpec(2, 1))
    cuts = pipeline_cuts(model, stages)
    assert [layer.kind for layer in model.layers[-2:]] == ["task_head", "head"]
    assert len(model.layers) - 1 not in cuts
    assert cuts[-1] == len(model.layers)
    assert len(cuts) == stages + 1


@pytest.mark.parametrize("head", [None, NEXT_SENTENCE], ids=["masked", "pairs"])
def test_every_boundary_of_an_encoder_has_one_float_tensor(head: HeadSpec | None) -> None:
    """Hidden states and facts: what follows the blocks has more outputs, and stays on the last stage."""
    model = architecture(BERT, 30522, head, 0.15)
    before = "block" if head is None else "task_head"
    assert [layer.kind for layer in model.layers[-3:]] == [before, "masked_head", "head"]
    for stages in range(1, 13):
        for cut in pipeline_cuts(model, stages)[1:-1]:
            assert model.layers[cut - 1].kind in ("tokens", "positions", "block", "norm"), stages
