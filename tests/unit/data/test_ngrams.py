"""n-gram baselines against direct counting."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common import log
from gpt1_ds.common.errors import DataError
from gpt1_ds.data import ngrams
from gpt1_ds.data.build import build
from gpt1_ds.data.dataset import Dataset
from gpt1_ds.data.tokenizers.registry import load_tokenizer


def by_counting(train: list[int], held_out: list[int], order: int, vocabulary: int) -> float:
    """Mean negative log-likelihood by dictionaries, recursing as the formula does."""
    discount = ngrams.DISCOUNT
    counts = [Counter(tuple(train[i : i + n]) for i in range(len(train) - n + 1)) for n in range(order + 1)]

    def probability(history: tuple[int, ...], word: int) -> float:
        if not history:
            spread = discount * len(counts[1]) / len(train) / vocabulary
            return max(counts[1][(word,)] - discount, 0) / len(train) + spread
        following = {gram: c for gram, c in counts[len(history) + 1].items() if gram[:-1] == history}
        total = sum(following.values())
        lower = probability(history[1:], word)
        if not total:
            return lower
        return max(following.get((*history, word), 0) - discount, 0) / total + discount * len(following) / total * lower

    logs = [np.log(probability(tuple(held_out[max(0, i - order + 1) : i]), held_out[i])) for i in range(len(held_out))]
    return -float(np.mean(logs))


def test_scores_equal_direct_counting(tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngrams, "MAX_TOKENS", 800)
    dataset = Dataset(tiny_data)
    train = dataset.split("train").read(0, 800).tolist()
    held_out = dataset.split("validation").read(0, 800).tolist()
    for score in ngrams.ngram_scores(tiny_data):
        assert score.loss == pytest.approx(by_counting(train, held_out, score.order, 500), rel=1e-9)
        assert score.perplexity == pytest.approx(np.exp(score.loss))


def test_longer_histories_predict_better(tiny_data: Path) -> None:
    unigram, bigram, trigram = ngrams.ngram_scores(tiny_data)
    assert unigram.loss > bigram.loss > trigram.loss
    assert 0 < trigram.bits_per_byte < unigram.bits_per_byte < 8


def test_a_split_that_is_shorter_than_a_history(tokenizer_folder: Path, tmp_path: Path) -> None:
    text = "kalo miren kalo miren"
    (tmp_path / "a.txt").write_text(text)
    count = len(load_tokenizer(tokenizer_folder).encode(text))
    for name, held_out in (("training", count - 1), ("held-out", 1)):
        build([tmp_path / "a.txt"], tokenizer_folder, tmp_path / name, workers=1, validation=held_out / count)
        assert [score.order for score in ngrams.ngram_scores(tmp_path / name, 2)] == [1, 2]
        with pytest.raises(DataError, match=rf"2 {name} tokens are too few .* of order 3; use a smaller --orders"):
            ngrams.ngram_scores(tmp_path / name)


def test_a_folder_that_keeps_nothing_still_tells(tiny_data: Path, tmp_path: Path) -> None:
    dataset = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    (dataset / "ngrams.json").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr(log, "say", said.append)
        assert ngrams.write_ngram_scores(dataset, 1) == ngrams.ngram_scores(tiny_data, 1)
    assert said == [f"{dataset}/ngrams.json: not kept for reports: Is a directory"]
