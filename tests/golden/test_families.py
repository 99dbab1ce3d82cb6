"""GPT-1, GPT-2, BERT and RoBERTa beside transformers at full width: logits, loss, every gradient and three optimizer
steps; GPT-1 also at full size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gpt1_ds.architecture.count import flops_per_token, parameters
from gpt1_ds.architecture.head import NEXT_SENTENCE, HeadSpec
from gpt1_ds.config import load
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.layers import TensorParallel
from tests.helpers.theirs import VOCABULARY, Pair, Rows, masked_labels, pair, rows

Losses = tuple[Callable[[], Tensor], Callable[[], Tensor]]
FOLLOWS_B = torch.tensor([0, 1, 0])  # transformers' labels: 0 where the second text follows the first


def causal_losses(both: Pair, batch: Rows) -> Losses:
    counted_BS = batch.is_real[:, 1:]
    labels_BS = torch.where(counted_BS, batch.tokens_BS[:, 1:], -100)
    tokens_SB, facts_BF = batch.ours()
    weights_SB = (counted_BS / counted_BS.sum()).T.contiguous()

    def theirs() -> Tensor:
        logits_BSV = both.theirs(**batch.theirs(segments=False)).logits[:, :-1]
        return cross_entropy(logits_BSV.flatten(0, 1), labels_BS.flatten())

    return theirs, lambda: both.ours(tokens_SB[:-1], facts_BF, tokens_SB[1:], weights_SB)


def masked_losses(both: Pair, batch: Rows) -> Losses:
    labels_BS, ours = masked_labels(batch)
    inputs = batch.theirs(segments=_segments(both))
    return lambda: both.theirs(**inputs, labels=labels_BS).loss, lambda: both.ours(*batch.ours(), *ours)


def pair_losses(both: Pair, batch: Rows) -> Losses:
    labels_BS, ours = masked_labels(batch)
    inputs = batch.theirs(segments=True)
    targets = (torch.zeros(3, dtype=torch.int64), torch.eye(2)[FOLLOWS_B], torch.full((3,), 1 / 3))
    return (
        lambda: both.theirs(**inputs, labels=labels_BS, next_sentence_label=FOLLOWS_B).loss,
        lambda: both.ours(*batch.ours(), *ours, *targets),
    )


def class_losses(both: Pair, batch: Rows) -> Losses:
    labels_B, first_B = torch.tensor([2, 0, 1]), torch.zeros(3, dtype=torch.int64)
    inputs = batch.theirs(segments=_segments(both))
    text = (batch.tokens_BS.T[:1], torch.zeros(1, 3))  # of no language model
    return (
        lambda: both.theirs(**inputs, labels=labels_B).loss,
        lambda: both.ours(*batch.ours(), *text, first_B, torch.eye(3)[labels_B], torch.full((3,), 1 / 3)),
    )


def _segments(both: Pair) -> bool:
    return both.family.model_type == "bert"


CLASSES: dict[str, tuple[str, HeadSpec | None, Callable[[Pair, Rows], Losses]]] = {
    "OpenAIGPTLMHeadModel": ("gpt1", None, causal_losses),
    "GPT2LMHeadModel": ("gpt2", None, causal_losses),
    "BertForMaskedLM": ("bert_base", None, masked_losses),
    "BertForPreTraining": ("bert_base", NEXT_SENTENCE, pair_losses),
    "BertForSequenceClassification": ("bert_base", HeadSpec(3, 1, lm_coefficient=0.0, kind="pooled"), class_losses),
    "RobertaForMaskedLM": ("roberta_base", None, masked_losses),
    "RobertaForSequenceClassification": (
        "roberta_base",
        HeadSpec(3, 1, lm_coefficient=0.0, kind="dense"),
        class_losses,
    ),
}
LANGUAGE = [name for name in CLASSES if "Sequence" not in name]


def both_logits(both: Pair, batch: Rows) -> tuple[Tensor, Tensor]:
    """(theirs, ours) at the real positions [n, V]."""
    with torch.no_grad():
        output = both.theirs(**batch.theirs(segments=_segments(both)))
        theirs_BSV = output.get("logits", output.get("prediction_logits"))
        ours_BSV = both.ours.logits(*batch.ours()).transpose(0, 1)[..., : theirs_BSV.shape[-1]]
    return theirs_BSV[batch.is_real], ours_BSV[batch.is_real]


def compared(name: str, layers: int | None) -> int:
    """Steps of training in which both sides agreed; raises AssertionError where they do not."""
    preset, head, losses = CLASSES[name]
    both, batch = pair(name, preset, head, layers), rows()
    if name in LANGUAGE:
        wanted, found = both_logits(both, batch)
        assert wanted.abs().max() > 1, "the logits are far from zero"
        assert (found - wanted).abs().max() <= 1e-5 * max(1.0, float(wanted.abs().max()))
    if head is not None:
        with torch.no_grad():
            output = both.theirs(**batch.theirs(segments=_segments(both)))
            scores = both.ours.scores(batch.ours()[0], torch.zeros(3, dtype=torch.int64), batch.ours()[1])
        assert (scores - output.get("seq_relationship_logits", output.get("logits"))).abs().max() <= 1e-5
    steps = 3 if layers else 1
    check_training(both, *losses(both, batch), steps=steps)
    return steps


def check_training(both: Pair, theirs: Callable[[], Tensor], ours: Callable[[], Tensor], steps: int) -> None:
    options: dict[str, Any] = {"lr": 1e-4, "weight_decay": 0.01, "eps": 1e-6}
    optimizers = [torch.optim.AdamW(model.parameters(), **options) for model in (both.theirs, both.ours)]
    for step in range(steps):
        wanted, found = theirs(), ours()
        assert abs(found.item() - wanted.item()) <= 1e-5 * max(1.0, wanted.item()), step
        for optimizer, loss in zip(optimizers, (wanted, found), strict=True):
            optimizer.zero_grad()
            loss.backward()
        if step == 0:
            check_gradients(both)
        for optimizer in optimizers if steps > 1 else []:
            optimizer.step()
    if steps > 1:  # what the last step has changed
        wanted, found = theirs(), ours()
        assert abs(found.item() - wanted.item()) <= 1e-5 * max(1.0, wanted.item())


def check_gradients(both: Pair, zero: tuple[str, ...] = ()) -> None:
    """`zero` names those whose gradient is nothing but rounding."""
    parameters = dict(both.theirs.named_parameters())
    gradients = both.in_our_shape(
        {name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in parameters.items()}
    )
    for name, parameter in both.parameters().items():
        if name not in gradients:
            continue  # of the language model, which a classifier does not have
        assert parameter.grad is not None, name
        want = gradients[name]
        got = parameter.grad[: len(want)]
        if name in zero:
            assert max(got.norm(), want.norm()) <= 1e-6, name
            continue
        if name.endswith("qkv.bias"):  # the key bias has no gradient but rounding
            heads = both.facts.heads
            want, got = want.unflatten(0, (heads, 3, -1))[:, ::2], got.unflatten(0, (heads, 3, -1))[:, ::2]
        assert (got - want).norm() <= 1e-4 * want.norm(), name


@pytest.mark.parametrize("name", list(CLASSES))
def test_logits_loss_gradients_and_steps_are_theirs(name: str) -> None:
    assert compared(name, layers=2) == 3


@pytest.mark.parametrize(
    "name",
    [
        "OpenAIGPTLMHeadModel",
        pytest.param("GPT2LMHeadModel", marks=pytest.mark.slow),
        pytest.param("BertForPreTraining", marks=pytest.mark.slow),
    ],
)
def test_so_they_are_at_full_size(name: str) -> None:
    assert compared(name, layers=None) == 1


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForMaskedLM"])
def test_padding_changes_nothing(name: str) -> None:
    both, batch = pair(name, CLASSES[name][0]), rows()
    length = int(batch.length_B[1])
    alone = Rows(batch.tokens_BS[1:2, :length], batch.length_B[1:2], batch.second_B[1:2])
    with torch.no_grad():
        padded = both.ours.logits(*batch.ours())[:length, 1:2]
        found = both.ours.logits(*alone.ours())
    torch.testing.assert_close(found[..., :VOCABULARY], padded[..., :VOCABULARY], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("preset", "count"),
    [
        ("gpt1", 116_534_784 + 4 * 768),  # a row for each control symbol
        ("gpt2", 124_439_808),
        ("gpt2_medium", 354_823_168),
        ("gpt2_large", 774_030_080),
        ("gpt2_xl", 1_557_611_200),
        ("bert_base", 109_514_298),
        ("bert_large", 335_174_458),
        ("roberta_base", 124_697_433 - 3 * 768),  # two rows before the first position, one of the only segment
        ("roberta_large", 355_412_057 - 3 * 1024),
    ],
)
def test_presets_have_the_published_sizes(preset: str, count: int) -> None:
    model = load([f"model/{preset}"], []).model
    assert model.vocab_size is not None
    assert parameters(model, model.vocab_size) == count


@pytest.mark.parametrize("preset", ["gpt1", "gpt2", "bert_base"])
def test_flops_are_what_torch_counts(preset: str) -> None:
    """All positions pass through the masked head and meet the vocabulary."""
    from torch.utils.flop_counter import FlopCounterMode

    small = ["model.layers=2", "model.width=64", "model.heads=4", "model.context=128", "model.vocab_multiple=1"]
    config = load([f"model/{preset}"], [*small, "model.vocab_size=1000"])
    model = DenseModel(config, 1000, TensorParallel(connect_alone())).eval().requires_grad_(False)
    tokens_SB = torch.zeros(128, 2, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.logits(tokens_SB)
    forward = flops_per_token(config.model, 1000) / 3 * tokens_SB.numel()
    assert counter.get_total_flops() == pytest.approx(forward, rel=1e-6)
