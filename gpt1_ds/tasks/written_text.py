"""Scores of texts that a model writes, by the libraries that papers use.

- bleu as sacrebleu counts (Post 2018), of the whole set; its signature is in eval.json
- rouge1, rouge2, rougeLsum: the mean over examples of the F1 of words, of pairs of words and of the longest common
  subsequence, by rouge-score with Porter's stemmer (Lin 2004); rougeLsum takes the lines of a text for its sentences
- exact_match and f1 as SQuAD's script counts (token_metrics.py)

Of several right texts ROUGE takes the nearest, and BLEU all.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from gpt1_ds.common.errors import DataError

ROUGE = ("rouge1", "rouge2", "rougeLsum")
LIBRARY_OF = {"bleu": "sacrebleu", **dict.fromkeys(ROUGE, "rouge_score")}  # as it is imported
BLEU_ORDERS = 4


def rouge(metric: str, targets: tuple[str, ...], said: str) -> tuple[float, float]:
    """Returns (F1 of the nearest of the right texts, 1)"""
    return max(float(_rouge().score(target, said)[metric].fmeasure) for target in targets), 1.0


def bleu_counts(targets: tuple[str, ...], said: str) -> tuple[float, ...]:
    """Returns what corpus BLEU adds up: (words of the text, words of the right text nearest in length, how many n-grams
    of each order are right, how many there are).
    """
    one = _bleu().sentence_score(said, list(targets))
    return float(one.sys_len), float(one.ref_len), *map(float, one.counts), *map(float, one.totals)


def bleu_of(sums: list[float]) -> float:
    """Returns corpus BLEU, 0 to 1, of added up `bleu_counts`."""
    counts = [round(one) for one in sums]  # sacrebleu takes whole numbers
    system, reference, right, total = counts[0], counts[1], counts[2 : 2 + BLEU_ORDERS], counts[2 + BLEU_ORDERS :]
    if not total[0]:
        return 0.0
    return float(_class().compute_bleu(right, total, system, reference, smooth_method="exp").score) / 100


def signature(references: Iterable[int]) -> str:
    """Returns how sacrebleu counts texts of which each has as many right ones as `references` say, in its own words."""
    counts = sorted({*references})
    whole = _class()()
    rows = [["a" if number < count else None for count in counts] for number in range(counts[-1])]
    whole.corpus_score(["a"] * len(counts), rows)
    return str(whole.get_signature())


@cache
def _bleu() -> Any:
    return _class()(effective_order=True)  # of one text, which is only counted here; else each call warns


def _class() -> Any:
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise DataError("bleu needs sacrebleu; pip install 'gpt1-ds[finetune]'") from None
    return BLEU


@cache
def _rouge() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise DataError("rouge needs rouge-score; pip install 'gpt1-ds[finetune]'") from None
    return RougeScorer([*ROUGE], use_stemmer=True)
