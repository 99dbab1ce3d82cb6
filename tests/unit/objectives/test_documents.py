"""Where documents lie in rows: worked out here token by token."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.config import ModelConfig, load
from gpt1_ds.config.objective import ObjectiveConfig
from gpt1_ds.data.loader import BatchShape, Rows
from gpt1_ds.data.sources import open_data
from gpt1_ds.objectives.base import HostBatch, row_facts
from gpt1_ds.objectives.causal import Causal, Prefix
from gpt1_ds.objectives.documents import bounds, numbers
from gpt1_ds.objectives.pretraining import pretraining_objective
from gpt1_ds.objectives.spans import Spans, SpanText
from gpt1_ds.plan.communication import Communication
from tools.families import FAMILIES

END, PAD, LAST = 1, 0, 29_999
TWO = ModelConfig(kind="encoder_decoder", norm="pre", context=64, vocab_size=30_000)


def runs(number_S: list[int]) -> list[tuple[int, int]]:
    """(first position, position after the last) of each position's document."""
    found: list[tuple[int, int]] = []
    for _, run in groupby(number_S):
        length = len(list(run))
        found += [(len(found), len(found) + length)] * length
    return found


def pairs(bounds_2S: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(*np.split(bounds_2S, 2), strict=True))


def test_a_document_ends_with_its_end() -> None:
    tokens_BS = np.array([[7, END, END, 8, 9, END], [7, 8, 9, END, 6, 6]])
    number_BS = numbers(tokens_BS, END)
    assert number_BS.tolist() == [[0, 0, 1, 2, 2, 2], [0, 0, 0, 0, 1, 1]]
    special_BS = np.array([[False, True, True, False, False, True], [False, False, False, True, True, True]])
    assert numbers(tokens_BS, END, special_BS).tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]
    for row, found in zip(number_BS.tolist(), bounds(number_BS, number_BS), strict=True):
        assert pairs(found) == runs(row)


def test_a_causal_model_still_predicts_what_follows_an_end() -> None:
    rows = Rows(np.array([[5, END, 6, 7, END, 8]]), np.zeros(1, dtype=np.int64))
    apart, joined = Causal(END).batch(rows), Causal().batch(rows)
    assert apart.bounds is not None
    assert pairs(apart.bounds[0]) == [(0, 2), (0, 2), (2, 5), (2, 5), (2, 5)]
    for one, other in zip((*apart.inputs, *apart.labels), (*joined.inputs, *joined.labels), strict=True):
        assert np.array_equal(one, other)
    assert joined.bounds is None
    assert Causal(END).probe(ModelConfig(vocab_size=2)).bounds is None, "the probe of a checkpoint is one document"


def test_facts_are_three_where_rows_are_one_document() -> None:
    keys_B = np.array([3, 4])
    assert row_facts(keys_B).shape == (2, 3)
    assert row_facts(keys_B, None, np.ones((2, 8), dtype=np.int64)).shape == (2, 11)


@pytest.mark.parametrize("mean_length", [3.0, None])
def test_spans_of_several_documents(mean_length: float | None) -> None:
    """A sentinel is of the document of its first token; each document's target begins as the target of a row does."""
    settings = ObjectiveConfig(kind="spans", density=0.4, mean_length=mean_length, sentinels=40)
    objective = Spans(settings, TWO, SpanText(LAST, END, PAD, key=7, apart=True))
    length, draw = settings.lengths(TWO).text, np.random.default_rng(2)
    tokens_BT = np.where(draw.random((200, length + 1)) < 0.15, END, draw.integers(10, 20_000, (200, length + 1)))
    number_B = np.arange(200)
    batch = objective.batch(Rows(tokens_BT, number_B, number_B))
    joined = replace(objective, text=SpanText(LAST, END, PAD, key=7)).batch(Rows(tokens_BT, number_B, number_B))
    assert batch.bounds is not None
    assert joined.bounds is None
    for one, other in zip((batch.inputs[0], *batch.labels), (joined.inputs[0], *joined.labels), strict=True):
        assert np.array_equal(one, other), "source, target and weights are the same"
    S, T, is_noise_BL = len(batch.inputs[0]), len(batch.inputs[1]), objective.noise(number_B)
    words = ["model.kind=encoder_decoder", "model.norm=pre", "model.context=64", "data.documents=masked"]
    words += ["objective.kind=spans", "objective.density=0.4", f"objective.mean_length={mean_length or 'null'}"]
    assert Communication(load([], words), 1).facts == 8 * (3 + batch.bounds.shape[1]), "as planned"
    for row in range(200):
        source, target, document = list[int](), list[int](), 0
        tokens = zip(is_noise_BL[row].tolist(), tokens_BT[row].tolist(), strict=False)
        for is_noise, run in groupby(tokens, key=itemgetter(0)):
            if is_noise:
                source.append(document)
                target.append(document)
            for _, token in run:
                (target if is_noise else source).append(document)
                document += token == END
        last = document - (tokens_BT[row, length - 1] == END)
        source, target = [*source, last], [*target, last]
        check(batch, row, (S, T), source, target)
        begins = [at for at in range(len(target)) if at == 0 or target[at] != target[at - 1]]
        wanted = np.roll(batch.labels[0][:, row], 1)
        wanted[begins] = PAD
        assert np.array_equal(batch.inputs[1][: len(target), row], wanted[: len(target)])


def check(batch: HostBatch, row: int, positions: tuple[int, int], source: list[int], target: list[int]) -> None:
    """Compares the bounds of a row with the numbers of its documents."""
    S, T = positions
    assert batch.bounds is not None
    of_source, of_target, in_source = np.split(batch.bounds[row], [2 * S, 2 * S + 2 * T])
    assert pairs(of_source)[: len(source)] == runs(source)
    assert pairs(of_target)[: len(target)] == runs(target)
    for document, (begin, end) in zip(target, pairs(in_source), strict=False):
        assert [at for at, number in enumerate(source) if number == document] == list(
            range(begin, min(end, len(source)))
        )


def test_the_rest_of_a_prefix_in_a_second_stack() -> None:
    objective, number_B, draw = Prefix(ObjectiveConfig(), TWO, PAD, 5, END), np.arange(50), np.random.default_rng(4)
    tokens_BT = np.where(draw.random((50, 65)) < 0.1, END, draw.integers(10, 20_000, (50, 65)))
    batch, cut_B = objective.batch(Rows(tokens_BT, number_B, number_B)), objective.cuts(number_B)
    for row, cut in enumerate(cut_B):
        number = [0, *np.cumsum(tokens_BT[row] == END)[:-1].tolist()]
        check(batch, row, (64, 64), number[:cut], number[cut:][:64])


@pytest.mark.parametrize(
    ("family", "kind"),
    [("gpt1", "windows"), ("gpt1", "full_sentences"), ("roberta", "windows"), ("roberta", "full_sentences")],
)
def test_the_documents_of_a_dataset(family: str, kind: str, short_documents: Path) -> None:
    """As many in a row as its tokens are taken from, in training and held out."""
    words = [*(FAMILIES["roberta"] if family == "roberta" else []), f"data.text={kind}"]
    words += [f"data.path={short_documents}/masks", "model.context=128", "data.offsets=fixed", "data.documents=masked"]
    config = load([], words)
    data, shape = open_data(config), BatchShape(8, 8)
    objective = pretraining_objective(config, data.tokenizer)
    (rows,) = data.training.batch(1, shape).micro_batches
    found = objective.batch(rows).bounds
    assert found is not None
    touched = data.training.documents(1, range(8), shape)
    spare = kind != "full_sentences"  # a window's last token is not among its inputs
    most = [len(set(place["documents"])) for place in touched]
    counts = [len(set(pairs(one))) for one in found]
    assert max(counts) > 1
    assert all(0 <= there - here <= spare for here, there in zip(counts, most, strict=True))
    for one in found:
        assert all(before == after or before[1] == after[0] for before, after in pairwise(pairs(one)))
    assert data.held_out is not None
    assert objective.batch(next(data.held_out.batches(shape, 1))[0]).bounds is not None
    assert Communication(config, 1).facts == row_facts(rows.row_B, None, found).nbytes // 8, "as planned"
    other = load([], [*words[:-1], "data.documents=joined"])
    assert pretraining_objective(other, data.tokenizer).batch(rows).bounds is None
