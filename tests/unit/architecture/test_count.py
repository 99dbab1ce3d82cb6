from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.count import flops_per_token, parameters
from gpt1_ds.config.model import ModelConfig

GPT1 = ModelConfig(layers=12, width=768, heads=12, context=512)


def test_gpt1_by_hand() -> None:
    block = 4 * 768 * 768 + 4 * 768 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    assert parameters(GPT1, 40478) == 40478 * 768 + 512 * 768 + 12 * block == 116_534_784
    assert len(architecture(GPT1, 40478).shapes) == 146
    weights = 12 * 12 * 768**2 + 40478 * 768
    assert flops_per_token(GPT1, 40478) == 6 * weights + 12 * 12 * 512 * 768 == 752_753_664
    assert flops_per_token(GPT1, 40478, causal=True) == 6 * weights + 6 * 12 * 512 * 768 == 724_442_112
