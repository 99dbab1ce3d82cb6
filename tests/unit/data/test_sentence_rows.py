"""Rows of full sentences and of pairs: pure, whole, never too long, whatever the documents are."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_ds.common.errors import DataError
from gpt1_ds.data import sentences as sentences_module
from gpt1_ds.data.loader import BatchShape
from gpt1_ds.data.pairs import VERSIONS, Pairs
from gpt1_ds.data.rows import TextRows
from gpt1_ds.data.sentence_data import FullSentences, SentenceHeldOut, SentenceTraining, Text
from gpt1_ds.data.sentences import Sentences
from tests.unit.data.sentence_streams import EOD, FIRST, SPECIAL, Documents, books, stream_of

CONTEXT = 48
Make = Callable[[Sentences, int, str, int], Text]
VARIANTS = (FullSentences, Pairs, partial(FullSentences, across=False), partial(Pairs, single=True))


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Sentences:
    return Sentences(stream_of(tmp_path_factory.mktemp("books"), [*books(12, 150), [], [3], [70, 200]]))


def training(text: Text) -> SentenceTraining:
    return SentenceTraining([text], [1.0], CONTEXT, SPECIAL)


def joined(data: SentenceTraining, step: int, micro_batch: int, data_size: int) -> tuple[dict[int, bytes], int]:
    """Every field of every row of a global batch of 16, and the batch's fingerprint."""
    rows_found: dict[int, bytes] = {}
    total = 0
    for rank in range(data_size):
        batch = data.batch(step, BatchShape(16, micro_batch, data_size, rank))
        total += batch.fingerprint
        for rows in batch.micro_batches:
            assert isinstance(rows, TextRows)
            fields = (rows.tokens_BS, rows.length_B, rows.second_B, rows.follows_B, rows.number_B, rows.special_BS)
            for at, row in enumerate(rows.row_B.tolist()):
                rows_found[row] = b"".join(field[at].tobytes() for field in fields) + rows.lengths_G.tobytes()
    assert sorted(rows_found) == list(range(16))
    return rows_found, total % 2**64


@pytest.mark.parametrize("make", VARIANTS)
@pytest.mark.parametrize("step", [1, 100, 10**5])
def test_a_batch_is_the_same_on_every_layout(sentences: Sentences, make: Make, step: int) -> None:
    first = joined(training(make(sentences, CONTEXT, "hash", 1)), step, 16, 1)
    for micro_batch, data_size in ((1, 1), (8, 2), (4, 4), (1, 16)):
        assert joined(training(make(sentences, CONTEXT, "hash", 1)), step, micro_batch, data_size) == first
    assert joined(training(make(sentences, CONTEXT, "hash", 2)), step, 16, 1) != first


@pytest.mark.parametrize("make", [FullSentences, Pairs])
def test_another_process_reads_the_same(sentences: Sentences, make: Make) -> None:
    entry = {"tokens": sentences.stream.tokens, "documents": sentences.stream.documents, "bytes": 0}
    entry |= {"shards": sentences.stream.shards, "sentences": sentences.stream.sentence_counts}
    module = make.__module__  # type: ignore[attr-defined]
    program = f"""
from pathlib import Path
from gpt1_ds.data.dataset import TokenStream
from gpt1_ds.data.sentences import Sentences
from {module} import {make.__name__} as make  # type: ignore[attr-defined]
from tests.unit.data.test_sentence_rows import CONTEXT, joined, training
stream = TokenStream(Path({str(sentences.stream.folder)!r}), "train", {entry!r}, "int32", {sentences.stream.vocab_size})
print(joined(training(make(Sentences(stream), CONTEXT, "hash", 1)), 7, 4, 2)[1])
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert int(out) == joined(training(make(sentences, CONTEXT, "hash", 1)), 7, 16, 1)[1]


def rows_of(text: Text, first: int, count: int) -> list[list[np.ndarray]]:
    spans = text.spans(np.arange(first, first + count))
    return [spans.tokens(text.stream, row) for row in range(count)]


def check_full(documents: Documents, folder: Path, context: int, shard_tokens: int = 1 << 30) -> None:
    found = Sentences(stream_of(folder, documents, shard_tokens))
    text = FullSentences(found, context, "hash", 3)
    for one in range(2):
        rows = [row[0] for row in rows_of(text, one * text.rows_per_pass, text.rows_per_pass)]
        assert max(map(len, rows)) <= context - 2
        assert all(row[0] != EOD and row[-1] != EOD for row in rows)
        seen = np.concatenate(rows)
        assert np.array_equal(np.sort(seen[seen != EOD]), FIRST + np.arange(sum(map(sum, documents))))
        borders = {FIRST + int(at) for at in np.cumsum([0, *(size for document in documents for size in document)])}
        too_long = [size for document in documents for size in document if size > context - 2]
        if not too_long and shard_tokens > found.stream.tokens:
            assert all(int(row[0]) in borders and int(row[-1]) + 1 in borders for row in rows)
            documents_at = {FIRST + int(at) for at in np.cumsum([sum(document) for document in documents])}
            in_order = sorted(rows, key=lambda row: int(row[0]))
            for row, following in pairwise(in_order):  # one sentence more would not fit
                end = min(at for at in borders if at > following[0])
                separators = int(following[0]) in documents_at  # a row across documents has one more
                empty = sum(not document for document in documents)
                assert len(row) + separators + end - following[0] > context - 2 - empty


def borders_of(documents: Documents) -> list[tuple[int, int]]:
    """(first token, token after the last) of every sentence, as stream_of numbers them."""
    ends = np.cumsum([0, *(size for document in documents for size in document)]).tolist()
    return [(FIRST + start, FIRST + end) for start, end in pairwise(ends)]


def test_document_sentences_end_with_their_document(tmp_path: Path) -> None:
    documents: Documents = [*books(5, 60), [], [3], [20, 30, 4]]
    found = Sentences(stream_of(tmp_path, documents))
    across, within = (FullSentences(found, CONTEXT, "hash", 3, None, across) for across in (True, False))
    rows = [row[0] for row in rows_of(within, 0, within.rows_per_pass)]
    assert within.rows_per_pass > across.rows_per_pass
    assert not any(EOD in row for row in rows)
    assert np.array_equal(np.sort(np.concatenate(rows)), FIRST + np.arange(sum(map(sum, documents))))
    ends = FIRST + np.cumsum([sum(document) for document in documents])
    for row in rows:
        assert np.searchsorted(ends, row[0], side="right") == np.searchsorted(ends, row[-1], side="right")
    for row, following in pairwise(sorted(rows, key=lambda row: int(row[0]))):
        end = next(end for start, end in borders_of(documents) if start <= following[0] < end)
        is_piece = int(row[0]) not in dict(borders_of(documents))  # of a sentence that is longer than a row
        is_last = int(row[-1]) + 1 in ends
        assert is_piece or is_last or len(row) + end - following[0] > CONTEXT - 2, "it is filled before"
    data = training(within)
    assert CONTEXT / 2 < data.mean_row() < training(across).mean_row() <= CONTEXT


def test_sentence_pairs_are_two_sentences(tmp_path: Path) -> None:
    documents = books(6, 80)
    borders = borders_of(documents)
    starts, last_of = dict(borders), {FIRST + int(end) for end in np.cumsum([sum(document) for document in documents])}
    text = Pairs(Sentences(stream_of(tmp_path, documents)), 200, "hash", 1, single=True)
    spans = text.spans(np.arange(text.rows_per_pass))
    for row, (first, second) in enumerate(rows_of(text, 0, text.rows_per_pass)):
        a, b = (int(part[0]) for part in (first, second))
        assert (starts[a], starts[b]) == (int(first[-1]) + 1, int(second[-1]) + 1), "whole sentences, one each"
        assert (spans.follows_R[row] == 0) == (starts[a] == b and starts[a] not in last_of)
    assert 0.4 < spans.follows_R.mean() < 0.6
    assert text.rows_per_pass > 0.6 * len(borders)


def test_full_sentences_of_books(tmp_path: Path) -> None:
    check_full(books(5, 60), tmp_path, CONTEXT)


DOCUMENTS = st.lists(st.lists(st.integers(1, 30), max_size=6), min_size=1, max_size=8).filter(
    lambda documents: any(map(sum, documents))
)


@settings(max_examples=60, deadline=None)
@given(documents=DOCUMENTS, context=st.integers(5, 40), shard_tokens=st.sampled_from([7, 64, 1 << 30]))
def test_full_sentences_of_any_documents(
    documents: Documents, context: int, shard_tokens: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_full(documents, tmp_path_factory.mktemp("any"), context, shard_tokens)


def check_pairs(documents: Documents, folder: Path, context: int, shard_tokens: int = 1 << 30) -> None:
    found = Sentences(stream_of(folder, documents, shard_tokens))
    if found.documents < 2:
        with pytest.raises(
            DataError, match=r"data.text=pairs: .* its train split has fewer than two documents with text"
        ):
            Pairs(found, context, "hash", 3)
        return
    text = Pairs(found, context, "hash", 3)
    place = np.cumsum([0, *map(sum, documents)])  # the first token of each document
    text._locate(np.array([10**6]))  # makes every table
    ends = [*text._starts[:-1], *(text._starts[-1] + end for end in text._starts)]
    for one in (0, 1, VERSIONS + 1):
        number, table = ends[one], text._table(one % VERSIONS)
        used = table.a_sentences_C.astype(np.int64) + table.b_sentences_C  # every sentence is in one chunk
        with_text = np.concatenate([np.arange(a, b) for a, b in zip(found.first_D, found.stop_D, strict=True)])
        chunks = [np.arange(at, at + n) for at, n in zip(table.begin_C, used, strict=True)]
        assert np.array_equal(np.concatenate(chunks), with_text)
        spans = text.spans(np.arange(number, number + len(chunks)))
        assert spans.row_lengths.max() <= context
        assert spans.row_lengths.min() >= 5
        for row in range(len(chunks)):
            a, b = spans.tokens(found.stream, row)
            assert EOD not in a
            assert EOD not in b
            of_a, of_b = (set(np.searchsorted(place, tokens - FIRST, side="right")) for tokens in (a, b))
            assert len(of_a) == len(of_b) == 1
            assert spans.follows_R[row] == (of_a != of_b)
            assert spans.follows_R[row] or a[-1] < b[0]


@settings(max_examples=60, deadline=None)
@given(documents=DOCUMENTS, context=st.integers(5, 40), shard_tokens=st.sampled_from([7, 64, 1 << 30]))
def test_pairs_of_any_documents(
    documents: Documents, context: int, shard_tokens: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_pairs(documents, tmp_path_factory.mktemp("any"), context, shard_tokens)


@pytest.mark.parametrize("block", [1, 3, 50])
def test_tables_do_not_depend_on_the_size_of_blocks(
    sentences: Sentences, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = np.arange(200)
    whole = [make(sentences, CONTEXT, "hash", 1).spans(numbers) for make in (FullSentences, Pairs)]
    monkeypatch.setattr(sentences_module, "BLOCK_SENTENCES", block)
    for make, expected in zip((FullSentences, Pairs), whole, strict=True):
        found = make(sentences, CONTEXT, "hash", 1).spans(numbers)
        assert np.array_equal(found.start_RT, expected.start_RT)
        assert np.array_equal(found.stop_RT, expected.stop_RT)


def test_half_of_the_pairs_follow(tmp_path: Path) -> None:
    text = Pairs(Sentences(stream_of(tmp_path, books(60, 6000))), 128, "hash", 1)
    spans = text.spans(np.arange(100_000))
    assert abs(spans.follows_R.mean() - 0.5) < 0.005
    lengths = spans.row_lengths
    assert lengths.max() == 128
    assert 0.85 < (lengths == 128).mean() < 0.95  # the others have a shorter target, or end with their document
    sizes = spans.stop_RT - spans.start_RT
    assert 0.4 < (sizes[:, 0] > sizes[:, 1]).mean() < 0.6


def test_passes_differ_and_come_back_in_another_order(sentences: Sentences) -> None:
    text = Pairs(sentences, CONTEXT, "hash", 1)
    far = text.spans(np.arange(100 * text.rows_per_pass, 100 * text.rows_per_pass + 3))
    ends = np.array(text._starts)
    assert len(ends) == VERSIONS + 1
    passes = []
    for at, stop in ((0, ends[1]), (ends[1], ends[2]), (ends[10], ends[10] + ends[1])):
        spans = text.spans(np.arange(at, stop))
        passes.append(np.concatenate([spans.start_RT, spans.stop_RT], axis=1))
    assert sorted(passes[0].tolist()) == sorted(passes[2].tolist())
    assert passes[0].tolist() != passes[2].tolist()
    assert sorted(passes[0].tolist()) != sorted(passes[1].tolist())
    again = Pairs(sentences, CONTEXT, "hash", 1).spans(np.arange(100 * ends[1], 100 * ends[1] + 3))
    assert np.array_equal(far.start_RT, again.start_RT)


@pytest.mark.parametrize("make", [FullSentences, Pairs])
def test_the_special_tokens_of_a_row(sentences: Sentences, make: Make) -> None:
    data = training(make(sentences, CONTEXT, "hash", 1))
    (rows,) = data.batch(3, BatchShape(64, 64)).micro_batches
    assert isinstance(rows, TextRows)
    assert np.array_equal(rows.lengths_G, rows.length_B)
    has_border = False
    for row, (tokens, special) in enumerate(zip(rows.tokens_BS, rows.special_BS, strict=True)):
        length, second = rows.length_B[row], rows.second_B[row]
        assert np.array_equal(special, tokens < FIRST)
        assert (tokens[0], tokens[length - 1]) == (SPECIAL.cls, SPECIAL.separator)
        assert (tokens[length:] == SPECIAL.pad).all()
        assert EOD not in tokens
        if make is Pairs:
            assert np.flatnonzero(special[:length]).tolist() == [0, second - 1, length - 1]
            assert rows.follows_B[row] in (0, 1)
        else:
            assert (second, rows.follows_B[row]) == (length, -1)
            has_border |= special[1 : length - 1].any()
    assert has_border == (make is FullSentences)
    documents = data.documents(3, [0, 5], BatchShape(64, 64))
    assert [found["row"] for found in documents] == [0, 5]
    assert all(found["documents"] for found in documents)


@pytest.mark.parametrize("make", VARIANTS)
def test_held_out_rows_are_each_there_once(sentences: Sentences, make: Make) -> None:
    held_out = SentenceHeldOut(make(sentences, CONTEXT, "hash", 0), CONTEXT, SPECIAL)
    shape = BatchShape(16, 4, 2, 0)
    parts = [list(held_out.batches(BatchShape(16, 4, 2, rank))) for rank in (0, 1)]
    numbers = [rows.number_B[rows.row_B >= 0] for part in parts for batch in part for rows in batch]
    assert sorted(np.concatenate(numbers)) == list(range(held_out.rows))
    filling = parts[1][-1][-1]
    assert filling.row_B[-1] == -1
    assert filling.lengths_G.tolist().count(0) == -held_out.rows % 16
    assert (filling.tokens_BS[-1] == SPECIAL.pad).all()
    assert len(list(held_out.batches(shape, limit=2))) == 2


def test_sources_are_blended_by_weight(sentences: Sentences, tmp_path: Path) -> None:
    other = Sentences(stream_of(tmp_path, books(4, 100, seed=5)))
    texts = [Pairs(sentences, CONTEXT, "hash", 1), Pairs(other, CONTEXT, "hash2", 1)]
    data = SentenceTraining(texts, [3, 1], CONTEXT, SPECIAL)
    found = [row["data"] for row in data.documents(1, range(64), BatchShape(64, 64))]
    assert found.count(str(other.stream.folder)) == 16
    assert data.tokens_per_epoch == sum(text.rows_per_pass for text in texts) * CONTEXT


@pytest.mark.parametrize("make", [FullSentences, Pairs])
def test_copies_of_a_row_come_back_with_their_masks(sentences: Sentences, make: Make) -> None:
    text = Pairs(sentences, CONTEXT, "hash", 1, 2) if make is Pairs else make(sentences, CONTEXT, "hash", 1)
    data = SentenceTraining([text], [1.0], CONTEXT, SPECIAL, copies=2)
    (all_rows,) = data.batch(1, BatchShape(6 * text.rows_per_pass, 6 * text.rows_per_pass)).micro_batches
    assert isinstance(all_rows, TextRows)
    seen: dict[int, bytes] = {}
    for number, tokens in zip(all_rows.number_B.tolist(), all_rows.tokens_BS, strict=True):
        assert seen.setdefault(number, tokens.tobytes()) == tokens.tobytes()
    assert abs(len(seen) - 2 * text.rows_per_pass) <= 0.1 * text.rows_per_pass


def test_a_cap_reads_the_same_rows_in_every_pass(sentences: Sentences) -> None:
    text = FullSentences(sentences, CONTEXT, "hash", 1, used=7)
    passes = [text.spans(np.arange(at, at + 7)).start_RT[:, 0].tolist() for at in (0, 7)]
    assert len(set(passes[0])) == 7
    assert sorted(passes[0]) == sorted(passes[1])


def test_text_without_sentences(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, [[3]])
    assert stream.sentence_counts == {"sentences": 1, "one_sentence_documents": 1, "empty_documents": 0}
    none = stream_of(tmp_path / "none", [[], []])
    assert none.sentence_counts == {"sentences": 0, "one_sentence_documents": 0, "empty_documents": 2}
    with pytest.raises(DataError, match=r"its train split has no text"):
        FullSentences(Sentences(none), CONTEXT, "hash", 1)


def test_looking_through_documents_takes_little_more_memory_than_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [[2, 3] if number % 9 else [] for number in range(9_000)]
    stream = stream_of(tmp_path, documents, shard_tokens=20_011)
    expected = Sentences(stream)
    monkeypatch.setattr(sentences_module, "BLOCK_SENTENCES", 500)
    tracemalloc.start()
    found = Sentences(stream)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.documents == 8_000
    for name in ("first_D", "stop_D", "eod_D"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    assert peak < 40 * len(documents), "24 bytes are kept of each"
