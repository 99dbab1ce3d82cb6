"""Scores of spans, tags and written texts, each of sums over the examples, so that an interval can leave some out.

- exact_match and f1 of a span, as SQuAD's script counts (Rajpurkar et al. 2016, section 6.1): in lower case, without
  punctuation and articles; F1 is that of the words of both texts, and of several right answers the nearest one counts.
  Where there is no answer, only an empty text is right (Rajpurkar et al. 2018). The script of those questions leaves
  right answers out of which nothing remains, like "The".
- entity_f1 of tags, as conlleval counts (Tjong Kim Sang and De Meulder 2003): an entity is right where its kind and
  both its ends are. One begins at a B-, or at an I- that does not continue an entity of its kind. BIOES, BILOU and
  BMEWO are the same tags by other letters.
- accuracy of tags: the share of all words.
- bleu and rouge of written texts: written_text.py.

Shapes: N examples, P sums of a score: of a ratio its numerator and its denominator.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.tasks.tables import brief
from gpt1_ds.tasks.written_text import ROUGE, bleu_counts, bleu_of, rouge

Objects = NDArray[np.object_]
Floats = NDArray[np.float64]
_PREFIXES = dict(zip("BIESMLUW", "BIESIESS", strict=True))  # of tags, and what they are in BIOES
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def objects(values: Sequence[object]) -> Objects:
    """Returns [N] of any values, also of tuples, which numpy would take apart."""
    found = np.empty(len(values), dtype=object)
    found[:] = values if not values or not isinstance(values[0], tuple) else [*map(tuple, values)]  # type: ignore[arg-type]
    return found


def parts(metric: str, gold: NDArray[Any], found: NDArray[Any]) -> Floats:
    """Returns float64 [N, P]: what each example adds to the sums of `metric`. Right answers are tuples: of texts, none
    where there is no answer, or of tags.
    """
    return np.array([_PARTS[metric](right, said) for right, said in zip(gold, found, strict=True)], dtype=np.float64)


def of_sums(metric: str, sums_P: Floats) -> float | None:
    """Returns the metric of examples whose parts add up to this; None where its denominator is 0."""
    if metric == "bleu":
        return bleu_of(sums_P.tolist())
    above, below = sums_P.tolist()
    return above / below if below else None


def _normal(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def with_words(answers: Iterable[str]) -> tuple[str, ...]:
    """Returns the answers of which a word remains."""
    return tuple(filter(_normal, answers))


def _exact(answers: tuple[str, ...], said: str) -> tuple[float, float]:
    return float(any(_normal(answer) == _normal(said) for answer in answers or ("",))), 1.0


def _nearest(answers: tuple[str, ...], said: str) -> tuple[float, float]:
    return max(_overlap(_normal(answer), _normal(said)) for answer in answers or ("",)), 1.0


def _overlap(words: list[str], said: list[str]) -> float:
    """Returns F1 of words; where one side has none, whether the other has none either."""
    if not words or not said:
        return float(words == said)
    common = (Counter(words) & Counter(said)).total()
    return 2 * common / (len(words) + len(said))


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Returns (kind, first word, last word) of each entity of a sentence."""
    found, first, kind = set(), 0, ""
    for number, tag in enumerate((*tags, "O")):
        letter, _, name = tag.partition("-")
        prefix = _PREFIXES.get(letter)
        continues = kind and name == kind and prefix in ("I", "E")
        if kind and not continues:
            found.add((kind, first, number - 1))
            kind = ""
        if not kind and is_part(tag):
            first, kind = number, name
        if kind and prefix in ("E", "S"):
            found.add((kind, first, number))
            kind = ""
    return found


def is_part(tag: str) -> bool:
    """Returns whether a tag says that its word is part of an entity."""
    prefix, dash, name = tag.partition("-")
    return bool(dash and name) and prefix in _PREFIXES


def entity_problem(labels: Sequence[str]) -> str:
    """Returns why entities cannot be counted of words that have these tags; empty where they can."""
    unknown = [tag for tag in labels if "-" in tag and not is_part(tag)]
    if not any(map(is_part, labels)):
        return "no tag is part of an entity (B-..., I-...)"
    return f"tag {brief(unknown[0])} begins with none of {', '.join(f'{one}-' for one in _PREFIXES)}" if unknown else ""


def loose(tags: Sequence[str]) -> int:
    """Returns how many entities begin with I-, without a B- before."""
    pairs = zip(("O", *tags), tags, strict=False)
    return sum(tag.startswith("I-") and before.partition("-")[2] != tag[2:] for before, tag in pairs)


def _entity_f1(tags: tuple[str, ...], said: tuple[str, ...]) -> tuple[float, float]:
    right, found = entities(tags), entities(said)
    return 2.0 * len(right & found), float(len(right) + len(found))


def _words_right(tags: tuple[str, ...], said: tuple[str, ...]) -> tuple[float, float]:
    return float(sum(tag == other for tag, other in zip(tags, said, strict=True))), float(len(tags))


_PARTS: Mapping[str, Callable[..., tuple[float, ...]]] = {
    "exact_match": _exact,
    "f1": _nearest,
    "entity_f1": _entity_f1,
    "accuracy": _words_right,
    "bleu": bleu_counts,
    **{metric: partial(rouge, metric) for metric in ROUGE},
}
