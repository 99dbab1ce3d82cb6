"""Masks of the masked objective: pure functions of the sequence's number, with the paper's statistics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from gpt1_ds.architecture.head import NEXT_SENTENCE
from gpt1_ds.config import Config, load
from gpt1_ds.config.objective import ObjectiveConfig
from gpt1_ds.data.loader import BatchShape, HeldOutData
from gpt1_ds.data.rows import TextRows
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.objectives.base import HostBatch
from gpt1_ds.objectives.masked import Masked, MaskedText
from gpt1_ds.objectives.pretraining import pretraining_objective
from tests.helpers.foreign import encoder_tokenizers
from tests.unit.data.sentence_streams import books, stream_of

MASK, TEXT, CONTEXT = 3, 1000, 160  # ids below 4 are special
SPECIAL = 4


def objective(key: int = 7, pairs: bool = False, **settings: object) -> Masked:
    text = MaskedText(MASK, np.arange(SPECIAL, TEXT), key, np.arange(TEXT) % 3 != 0)
    return Masked(ObjectiveConfig(kind="masked", **settings), NEXT_SENTENCE if pairs else None, text)  # type: ignore[arg-type]


def text(numbers: np.ndarray, lengths: np.ndarray | None = None, context: int = CONTEXT) -> TextRows:
    """Rows whose tokens depend on their number alone; the first and the last token are special."""
    B = len(numbers)
    length_B = np.full(B, context) if lengths is None else lengths
    place_S = np.arange(context)
    tokens_BS = np.stack([np.random.default_rng(number).integers(SPECIAL, TEXT, context) for number in numbers])
    special_BS = (place_S == 0) | (place_S >= length_B[:, None] - 1)
    tokens_BS[special_BS] = 1
    return TextRows(
        tokens_BS, length_B, length_B // 2, numbers % 2, np.arange(B), numbers, special_BS, lengths_G=length_B
    )


def read(batch: HostBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(inputs [B, S], positions [B, M], their tokens [B, M], whether they count [B, M])."""
    at_MB, ids_MB, weights_MB = batch.labels[:3]
    return batch.inputs[0].T, at_MB.T, ids_MB.T, weights_MB.T > 0


def test_statistics_of_a_hundred_thousand_rows() -> None:
    chosen = masked = own = tokens = 0
    tested = objective()
    for first in range(0, 100_000, 1000):
        rows = text(np.arange(10), context=CONTEXT)
        rows = replace(
            rows,
            **{
                name: np.repeat(getattr(rows, name), 100, axis=0)
                for name in ("tokens_BS", "length_B", "second_B", "follows_B", "row_B", "special_BS", "lengths_G")
            },
            number_B=np.arange(first, first + 1000),
        )
        inputs, at, ids, counts = read(tested.batch(rows))
        assert not rows.special_BS[np.nonzero(counts)[0], at[counts]].any(), "special tokens are never predicted"
        found = np.take_along_axis(inputs, at, 1)[counts]
        chosen, tokens = chosen + int(counts.sum()), tokens + inputs.size
        masked, own = masked + int((found == MASK).sum()), own + int((found == ids[counts]).sum())
    assert chosen / tokens == pytest.approx(0.15, abs=0.001)
    assert masked / chosen == pytest.approx(0.8, abs=0.003)
    assert own / chosen == pytest.approx(0.1 + 0.1 / (TEXT - SPECIAL), abs=0.003)


def test_a_row_depends_on_its_number_alone() -> None:
    """On any rank, at any micro-batch size, after any other row."""
    tested, numbers = objective(), np.arange(100, 116)
    whole = read(tested.batch(text(numbers)))
    for size in (1, 2, 8):
        parts = [read(tested.batch(text(numbers[at : at + size]))) for at in range(0, 16, size)]
        for one, part in zip(whole, zip(*parts, strict=True), strict=True):
            assert np.array_equal(one, np.concatenate(part))
    other_number, other_seed = read(tested.batch(text(numbers + 16)))[1], read(objective(key=8).batch(text(numbers)))[1]
    assert not np.array_equal(whole[1], other_number)
    assert not np.array_equal(whole[1], other_seed)


def test_held_out_masks_are_those_of_the_window(tmp_path: Path) -> None:
    """At every step, in every run and micro-batch, however much of the text is read."""
    stream, tested = stream_of(tmp_path, books(3, 60)), objective()
    found: dict[int, set[bytes]] = {}
    for limit, size in ((0, 8), (0, 2), (2, 4)):
        data = HeldOutData(stream, "hash", CONTEXT, whole=True)
        for micro_batches in data.batches(BatchShape(8, size), limit):
            for rows in micro_batches:
                inputs, at, _, _ = read(tested.batch(rows))
                for place in np.flatnonzero(rows.row_B >= 0):
                    window = rows.tokens_BS[place, 0]
                    found.setdefault(int(window), set()).add(inputs[place].tobytes() + at[place].tobytes())
    assert len(found) == data.rows
    assert all(len(masks) == 1 for masks in found.values())


def test_labels_are_what_was_there_and_nothing_else_is_changed() -> None:
    rows = text(np.arange(8))
    inputs, at, ids, counts = read(objective().batch(rows))
    assert np.array_equal(ids, np.take_along_axis(rows.tokens_BS, at, 1))
    changed = inputs != rows.tokens_BS
    place, column = np.nonzero(counts)[0], at[counts]
    changed[place, column] = False
    assert not changed.any()


def test_the_end_of_a_document_is_never_predicted() -> None:
    """Windows hold it within the text; a row that has nothing else predicts nothing."""
    end, numbers = 2, np.arange(16)
    tokens_BT = np.random.default_rng(3).integers(SPECIAL, TEXT, (16, CONTEXT + 1))
    tokens_BT[:, ::2], tokens_BT[0] = end, end
    rows = TextRows.of_windows(tokens_BT, numbers, numbers, np.full(16, CONTEXT))
    for whole_words in (False, True):
        tested = objective(whole_words=whole_words)
        assert tested.text is not None
        tested = replace(tested, text=replace(tested.text, special_ids=(end, MASK)))
        inputs, _, ids, counts = read(tested.batch(rows))
        assert (ids[counts] != end).all()
        assert (inputs[:, ::2] == end).all()
        assert list(counts.sum(1)) == [0, *[24] * 15]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_tokenizer_names_what_is_never_predicted(tmp_path: Path, family: str) -> None:
    tokenizer = load_tokenizer(encoder_tokenizers(tmp_path)[family])
    config = load(["pretrain/roberta_base"], overrides=["data.path=x", "data.text=windows"])
    text = cast(Masked, pretraining_objective(config, tokenizer, "hash")).text
    assert text is not None
    ids = tokenizer.special_ids.present()
    assert {ids["eod"], ids["cls"], ids["mask"]} <= set(text.special_ids)
    assert ids.get("unknown") not in text.special_ids, "it stands for words"


@pytest.mark.parametrize("lengths", [[160, 160, 160, 160], [160, 5, 3, 40]])
def test_weights_are_means_over_the_global_batch(lengths: list[int]) -> None:
    """However it is cut into micro-batches: the loss is the mean of their sums."""
    rows, tested = text(np.arange(4), np.array(lengths)), objective()
    predicted = int(tested.predicted(rows.lengths_G).sum())
    assert predicted == sum(max(1, round(0.15 * n)) if n > 5 else 1 for n in lengths)
    for size in (1, 2, 4):
        parts = []
        for at in range(0, 4, size):
            here = slice(at, at + size)
            names = ("tokens_BS", "length_B", "second_B", "follows_B", "row_B", "number_B", "special_BS")
            part = replace(rows, **{name: getattr(rows, name)[here] for name in names})
            parts.append(tested.batch(part).labels[2] * size / 4)
        weights = np.concatenate([part.T[part.T > 0] for part in parts])
        assert weights == pytest.approx(1 / predicted, rel=1e-6)
        assert len(weights) == predicted


@pytest.mark.parametrize("probability", [0.01, 0.98, 1.0])
def test_a_row_weighs_as_much_whose_other_tokens_are_special(probability: float) -> None:
    rows, tested = text(np.arange(4), np.array([160, 7, 30, 3])), objective(probability=probability)
    wanted = tested.predicted(rows.lengths_G)
    assert tested.batch(rows).labels[2].sum(0, dtype=np.float64) == pytest.approx(wanted / wanted.sum(), rel=1e-6)


def test_rows_that_fill_up_a_batch_count_nothing() -> None:
    rows = text(np.arange(4))
    rows = replace(rows, row_B=np.array([0, 1, -1, -1]), lengths_G=np.array([CONTEXT, CONTEXT, 0, 0]))
    tested = objective(pairs=True)
    batch = tested.batch(rows)
    assert batch.labels[2].sum(0)[2:] == pytest.approx(0.0)
    assert batch.labels[2].sum() == pytest.approx(1.0, rel=1e-5)
    assert list(batch.labels[5]) == [0.5, 0.5, 0.0, 0.0], "the last held-out batch, too, has the mean of its pairs"
    assert tested.counts(rows, 2, 4) == (2 * 24, 2 * 24)


def test_pairs_have_targets() -> None:
    rows = text(np.arange(4))
    extract_B, targets_B2, weights_B = objective(pairs=True).batch(rows).labels[3:]
    assert not extract_B.any()
    assert np.array_equal(targets_B2, np.eye(2)[[0, 1, 0, 1]]), "0: the second text follows; 1: it does not"
    assert weights_B.sum() == pytest.approx(1.0)
    batch = objective(pairs=True).batch(rows)
    assert batch.spans is not None
    assert np.array_equal(batch.spans[1], rows.second_B)


def test_whole_words_are_predicted_whole() -> None:
    """Ids that 3 divides go on with a word; only the last word of a row may be cut, where none fits any more."""
    rows, tested = text(np.arange(200)), objective(whole_words=True)
    _, at, _, counts = read(tested.batch(rows))
    cut = 0
    for row in range(200):
        chosen = set(at[row][counts[row]])
        assert len(chosen) == int(tested.predicted(rows.length_B[:1])[0])
        for place in chosen:
            first = place
            while rows.tokens_BS[row, first] % 3 == 0 and not rows.special_BS[row, first - 1]:
                first -= 1
            after = first + 1
            while not rows.special_BS[row, after] and rows.tokens_BS[row, after] % 3 == 0:
                after += 1
            cut += not {*range(first, after)} <= chosen
    assert cut <= 4


def test_the_probe_needs_no_tokenizer() -> None:
    model = load([], ["model.vocab_size=500"]).model
    bare = Masked(ObjectiveConfig(kind="masked"))
    first, again = bare.probe(model), objective().probe(model)
    for one, other in zip((*first.inputs, *first.labels), (*again.inputs, *again.labels), strict=True):
        assert np.array_equal(one, other)


def test_a_kind_without_an_objective_is_not_masked() -> None:
    config = Config(objective=ObjectiveConfig(kind="replaced"))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="replaced"):
        pretraining_objective(config)
