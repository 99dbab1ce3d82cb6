"""T5 and T5 1.1 beside transformers at full width, source and target padded: logits, loss, every gradient, three steps.

Shapes: B rows, S source positions, T target positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.count import parameters
from gpt1_ds.checkpoint.whole import whole_model
from gpt1_ds.config import load
from gpt1_ds.interop.families.registry import family_of_model
from gpt1_ds.interop.families.rules import Facts
from gpt1_ds.interop.imported import our_weights
from gpt1_ds.model import names
from gpt1_ds.model.build import DenseModel
from gpt1_ds.objectives.base import row_facts
from gpt1_ds.objectives.source_target import SourceToTarget, Texts

VOCABULARY, PAD = 1000, 0
NO_DROPOUT = [f"model.{kind}_dropout=0" for kind in ("residual", "embedding", "attention", "ffn")]
PRESETS = ["t5_base", "t5_v1_1_base"]


@dataclass(frozen=True)
class Rows:
    source_BS: Tensor
    target_BT: Tensor
    source_B: Tensor  # lengths
    target_B: Tensor

    def weights(self) -> Tensor:
        counted_BT = torch.arange(self.target_BT.shape[1]) < self.target_B[:, None]
        return counted_BT / counted_BT.sum()

    def shifted(self) -> Tensor:
        return torch.cat([torch.full((len(self.target_B), 1), PAD), self.target_BT[:, :-1]], 1)

    def theirs(self) -> dict[str, Tensor]:
        is_real_BS = torch.arange(self.source_BS.shape[1]) < self.source_B[:, None]
        return {
            "input_ids": torch.where(is_real_BS, self.source_BS, PAD),
            "attention_mask": is_real_BS.long(),
            "decoder_input_ids": self.shifted(),
        }

    def labels(self) -> Tensor:
        return torch.where(self.weights() > 0, self.target_BT, -100)

    def ours(self) -> tuple[Tensor, Tensor, Tensor]:
        """(source [S, B], target shifted right [T, B], facts [B, 3])"""
        lengths = self.source_B.numpy()
        facts_BF = torch.from_numpy(row_facts(np.zeros(len(lengths), dtype=np.int64), (lengths, lengths)))
        return self.source_BS.T.contiguous(), self.shifted().T.contiguous(), facts_BF

    def our_labels(self) -> tuple[Tensor, Tensor]:
        return self.target_BT.T.contiguous(), self.weights().T.contiguous()


def rows() -> Rows:
    draw = np.random.default_rng(0)
    source_BS, target_BT = (torch.from_numpy(draw.integers(1, VOCABULARY, (3, n))) for n in (150, 21))
    return Rows(source_BS, target_BT, torch.tensor([150, 90, 1]), torch.tensor([21, 7, 1]))


@dataclass(frozen=True)
class Pair:
    theirs: Any
    ours: DenseModel
    facts: Facts
    preset: str

    def gradients(self) -> dict[str, Tensor]:
        """Theirs in our shape."""
        model = load([f"model/{self.preset}"], [f"model.vocab_size={VOCABULARY}", "model.layers=2"]).model
        found = {name: one.grad for name, one in self.theirs.named_parameters()}
        shapes = architecture(model, VOCABULARY).shapes
        return our_weights(family_of_model("", model), found, shapes, self.facts)  # type: ignore[arg-type]


def pair(preset: str) -> Pair:
    config = load([f"model/{preset}"], [*NO_DROPOUT, "model.layers=2", f"model.vocab_size={VOCABULARY}"])
    model = config.model
    family = family_of_model("", model)  # type: ignore[arg-type]
    torch.manual_seed(0)
    settings = {**family.write_config(model, PAD), "attn_implementation": "eager"}
    theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(**settings)).eval()
    if not model.tied:  # transformers ties what no file unties
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.lm_head.weight) * model.width**-0.5)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    facts, state = Facts(model.heads), dict(theirs.state_dict())
    weights = our_weights(family, state, architecture(model, VOCABULARY).shapes, facts)
    return Pair(theirs, whole_model(config, lambda info: weights[info.name]), facts, preset)


@pytest.mark.parametrize("preset", PRESETS)
def test_logits_loss_gradients_and_steps_are_theirs(preset: str) -> None:
    both, batch = pair(preset), rows()
    with torch.no_grad():
        wanted_BTV = both.theirs(**batch.theirs()).logits
        *ids, facts_BF = batch.ours()
        hidden_TBD = both.ours.states(*ids, facts_BF=facts_BF).last
        found_BTV = both.ours.logits_of(hidden_TBD).transpose(0, 1)[..., :VOCABULARY]
    assert wanted_BTV.abs().max() > 1, "the logits are far from zero"
    assert (found_BTV - wanted_BTV).abs().max() <= 1e-5 * max(1.0, float(wanted_BTV.abs().max()))
    # rounding decides about a unit of a ReLU that is at zero; a larger rate would show its other gradient in the losses
    options: dict[str, Any] = {"lr": 2e-6, "weight_decay": 0.01, "eps": 1e-6}
    optimizers = [torch.optim.AdamW(model.parameters(), **options) for model in (both.theirs, both.ours)]
    for step in range(4):
        losses = (
            both.theirs(**batch.theirs(), labels=batch.labels()).loss,
            both.ours(*batch.ours(), *batch.our_labels()),
        )
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-5), step
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
        if step == 0:
            _compare_gradients(both)
        for optimizer in optimizers:
            optimizer.step()


def test_a_batch_of_texts_to_write_is_the_one_that_was_compared() -> None:
    """What fine-tuning on texts makes of sources and targets, with what their classes are given above."""
    batch = rows()
    length_B = (batch.our_labels()[1] > 0).sum(0).numpy()
    texts = Texts(batch.source_BS.numpy(), batch.source_B.numpy(), batch.target_BT.numpy(), length_B)
    objective = SourceToTarget(2, PAD, limit=512, multiple=1)
    made = objective.batch(texts, objective.positions(texts.source_B, length_B), np.full(3, 1 / length_B.sum()))
    source, target, _ = batch.ours()
    is_source, is_target = (np.arange(n)[:, None] < lengths for n, lengths in ((150, texts.source_B), (21, length_B)))
    assert (made.inputs[0] == source.numpy())[is_source].all()
    assert (made.inputs[1] == target.numpy())[is_target].all()
    labels, weights = (part.numpy() for part in batch.our_labels())
    assert (made.labels[0] == labels)[is_target].all()
    np.testing.assert_allclose(made.labels[1], weights, rtol=1e-6)


def _compare_gradients(both: Pair) -> None:
    wanted = both.gradients()
    found = {names.info(parameter).name: parameter.grad for parameter in both.ours.parameters()}
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        got = found[name]
        assert got is not None
        assert (got[: len(want)] - want).norm() <= 1e-4 * want.norm(), name


@pytest.mark.parametrize(
    ("preset", "count"),
    [("t5_small", 60_506_624), ("t5_base", 222_903_552), ("t5_large", 737_668_096), ("t5_v1_1_base", 247_577_856)],
)
def test_presets_have_the_published_sizes(preset: str, count: int) -> None:
    """As transformers counts them."""
    model = load([f"model/{preset}"], []).model
    assert model.vocab_size is not None
    assert parameters(model, model.vocab_size) == count
