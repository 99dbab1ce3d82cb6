from dataclasses import replace

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.count import flops_per_token, parameters
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.config.model import ModelConfig

GPT1 = ModelConfig(layers=12, width=768, heads=12, context=512)


def test_gpt1_by_hand() -> None:
    block = 4 * 768 * 768 + 4 * 768 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    assert parameters(GPT1, 40478) == 40478 * 768 + 512 * 768 + 12 * block == 116_534_784
    assert len(architecture(GPT1, 40478).shapes) == 146
    weights = 12 * 12 * 768**2 + 40478 * 768
    assert flops_per_token(GPT1, 40478) == 6 * weights + 12 * 12 * 512 * 768 == 752_753_664
    assert flops_per_token(GPT1, 40478, causal=True) == 6 * weights + 6 * 12 * 512 * 768 == 724_442_112


def test_fine_tuning_counts_what_it_runs() -> None:
    """An encoder's task has neither a masked head nor logits; GPT-1's has both heads unless its coefficient is 0."""
    encoder = replace(GPT1, mask="bidirectional", head="masked", segments=2)
    blocks = 3 * 12 * (24 * 768 * 768 + 4 * 512 * 768)
    pooled = HeadSpec(2, 1, lm_coefficient=0.0, kind="pooled")
    assert flops_per_token(encoder, 40478, head=pooled) == blocks
    assert flops_per_token(GPT1, 40478, head=HeadSpec(2, 1, lm_coefficient=0.0)) == blocks + 3 * 2 * 768 * 2
    assert flops_per_token(GPT1, 40478, head=HeadSpec(2, 1)) == flops_per_token(GPT1, 40478) + 3 * 2 * 768 * 2
