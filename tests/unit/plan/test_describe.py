from gpt1_ds.config import load
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
