"""A row of several documents that do not see one another gives what each gives in a row of its own, in every family:
logits, the loss and its gradients. (tests/unit/objectives/test_documents.py says where they lie.)

Shapes: B rows, S positions, T of a target, M predicted positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpt1_ds.config import Config, load
from gpt1_ds.data.loader import Rows
from gpt1_ds.data.rows import TextRows
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.objectives.base import HostBatch, row_facts
from gpt1_ds.objectives.causal import Causal, Prefix
from gpt1_ds.objectives.masked import Masked, MaskedText
from gpt1_ds.objectives.spans import Spans, SpanText
from tools.families import FAMILIES

END, PAD, MASK, LAST = 1, 0, 2, 299
CONTEXT, VOCABULARY, ROWS = 24, 300, 4
SMALL = [
    *(f"model.context={CONTEXT}", "model.width=32", "model.heads=2"),
    *(f"model.{kind}_dropout=0" for kind in ("residual", "embedding", "attention", "ffn")),
]
MASKED = ["data.text=windows", "objective.whole_words=false", "objective.probability=0.4"]
KINDS = {
    "gpt1": [],
    "gpt2": FAMILIES["gpt2"],
    "lstm": ["model.kind=lstm", "model.layers=1", "model.units=24"],
    "roberta": [*FAMILIES["roberta"], *MASKED],
    "prefix": FAMILIES["prefix"],
    "two stacks": ["model.kind=encoder_decoder", "model.norm=pre", "objective.kind=prefix"],
    "t5": [*FAMILIES["t5"], "objective.density=0.4"],
}


def text(length: int) -> np.ndarray:
    """[B, length]: documents of 1 to 9 tokens, each with its end; the last row is one document."""
    draw = np.random.default_rng(5)
    tokens_BT = draw.integers(10, 250, (ROWS, length))
    for row in range(ROWS - 1):
        ends = draw.integers(1, 10, length).cumsum()
        tokens_BT[row, ends[ends < length]] = END
    return tokens_BT


def batch_of(config: Config, apart: bool) -> HostBatch:
    objective, model, row_B = config.objective, config.model, np.arange(ROWS)
    tokens_BT, end = text(objective.lengths(model).text + 1), END if apart else None
    rows = Rows(tokens_BT, row_B, row_B)
    if objective.kind == "causal":
        return Causal(end).batch(rows)
    if objective.kind == "prefix":
        return Prefix(objective, model, PAD, 6, end).batch(rows)
    if objective.kind == "spans":
        return Spans(objective, model, SpanText(LAST, END, PAD, 5, apart)).batch(rows)
    lengths_G = np.array([CONTEXT, CONTEXT - 3, CONTEXT, CONTEXT])
    padded = TextRows.of_windows(tokens_BT, row_B, row_B, lengths_G)
    padded.length_B[:] = lengths_G
    padded.special_BS[1, -3:] = True
    return Masked(objective, text=MaskedText(MASK, np.arange(10, 250), 7, end=end)).batch(padded)


@dataclass(frozen=True)
class Alone:
    """A document of row `row` in a row of its own, and at which positions it lies in that row."""

    inputs: tuple[Tensor, ...]
    facts_1F: Tensor
    labels: tuple[Tensor, ...]
    row: int
    place: slice


def documents(batch: HostBatch) -> Iterator[Alone]:
    """Each document of a batch whose rows keep them apart."""
    assert batch.bounds is not None
    last_SB = batch.inputs[-1]
    S = len(last_SB)
    begins = batch.bounds[:, : 2 * S] if len(batch.inputs) == 1 else batch.bounds[:, -4 * S : -2 * S]
    until_B = np.full(ROWS, S) if batch.spans is None else batch.spans[0]
    for row in range(ROWS):
        for first, stop in pairwise([*sorted(set(begins[row, :S].tolist())), S]):
            place, inputs, until = slice(first, stop), [], until_B[row] - first
            if len(batch.inputs) == 2:
                begin, end = batch.bounds[row, -2 * S + first], min(batch.bounds[row, -S + first], until_B[row])
                until = max(0, end - begin)
                source_S1 = batch.inputs[0][begin : begin + max(until, 1), row : row + 1]  # no row is empty
                inputs.append(source_S1 if len(source_S1) else np.full((1, 1), PAD))
            inputs.append(last_SB[place, row : row + 1])
            labels = [label[place, row : row + 1] for label in batch.labels]
            if len(batch.labels) == 3:  # where, what, weights
                here_M = (batch.labels[0][:, row] >= first) & (batch.labels[0][:, row] < stop)
                labels = [label[here_M, row : row + 1] for label in batch.labels]
                labels[0] = labels[0] - first
            facts = [0, max(until, 1), stop - first]
            if len(batch.inputs) == 2 and until == 0:  # none of it is in the source: it sees none
                T = stop - first
                facts += [0, 1, *[0] * T, *[T] * T, *[0] * 2 * T]
            yield Alone(_tensors(inputs), torch.tensor([facts]), _tensors(labels), row, place)


def facts_of(batch: HostBatch) -> Tensor:
    return torch.from_numpy(row_facts(np.zeros(ROWS, dtype=np.int64), batch.spans, batch.bounds))


def _tensors(arrays: Any) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(array.copy()) for array in arrays)


def gradients(model: DenseModel, loss: Tensor) -> dict[str, Tensor]:
    names = [name for name, _ in model.named_parameters()]
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return {name: one for name, one in zip(names, found, strict=True) if one is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_is_what_it_is_alone(kind: str) -> None:
    config = load([], [*KINDS[kind], *SMALL])
    model = DenseModel(config, VOCABULARY, TensorParallel(connect_alone()))
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15, generator=draw)
    batch, joined = (batch_of(config, apart) for apart in (True, False))
    inputs, labels, facts_BF = _tensors(batch.inputs), _tensors(batch.labels), facts_of(batch)
    logits_SBV = model.logits_of(model.states(*inputs, facts_BF=facts_BF).last)[..., :VOCABULARY]
    loss = model(*inputs, facts_BF, *labels)
    found, parts = gradients(model, loss), list(documents(batch))
    assert len(parts) > 2 * ROWS
    losses = []
    for alone in parts:
        states = model.states(*alone.inputs, facts_BF=alone.facts_1F)
        wanted_S1V = model.logits_of(states.last)[..., :VOCABULARY]
        assert torch.allclose(logits_SBV[alone.place, alone.row], wanted_S1V[:, 0], atol=1e-5)
        if alone.labels[0].numel():
            losses.append(model(*alone.inputs, alone.facts_1F, *alone.labels))
    wanted = gradients(model, torch.stack(losses).sum())
    assert float(loss.detach()) == pytest.approx(float(torch.stack(losses).sum().detach()), abs=1e-5)
    assert wanted.keys() == found.keys()
    for name, one in wanted.items():
        assert torch.allclose(found[name], one, atol=1e-5), name
    inputs, facts_BF = _tensors(joined.inputs), facts_of(joined)
    with torch.no_grad():
        others_SBV = model.logits_of(model.states(*inputs, facts_BF=facts_BF).last)[..., :VOCABULARY]
    apart_B = (others_SBV - logits_SBV.detach()).abs().amax((0, 2))
    assert (apart_B[:-1] > 1e-2).all(), "joined documents see one another"
    if config.model.stacks == 1:
        assert apart_B[-1] < 1e-5, "a row of one document is what it was"
