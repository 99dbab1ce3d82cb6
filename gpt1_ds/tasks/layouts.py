"""Tokens of texts as the sequences of the paper (section 3.3): pure functions, arrays in, arrays out.

S start, D delimiter, E extract. With a limit of M tokens (`task.max_length`, else the model's context):
- single        S x E                       x is cut to M - 2 tokens
- pair          S a D b E                   each text is cut to M // 2 - 2 tokens (254 of 512), as in the authors' code
- both          S a D b E and S b D a E     the same
- choice        S document D choice E       per choice: the document, here a story's sentences, and each choice are cut
                                            to M // 2 - 2 tokens, as in the authors' code
- choice with a question
                S document question D choice E
                                            no delimiter before the question; question and choices are cut to M // 4 - 1
                                            tokens, the document to what the longest choice leaves
What is cut is a text's end. No sequence is longer than M, and the specials are always there: the extract token is the
last one. The language-model loss counts every token after S, D and E included. The authors' code knows pairs of texts
only; the cuts of a single text and of a document with a question are this program's own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.config.task import SHORTEST
from gpt1_ds.data.tokenizers.base import SpecialIds

Int32s = NDArray[np.int32]


def single(text: Int32s, specials: SpecialIds, limit: int) -> list[Int32s]:
    """[S x E], one int32 [T] with T <= limit."""
    return [_join(specials, text[: _checked(limit) - 2])]


def pair(first: Int32s, second: Int32s, specials: SpecialIds, limit: int) -> list[Int32s]:
    """[S a D b E], one int32 [T] with T <= limit."""
    half = pair_limit(limit)
    return [_join(specials, first[:half], second[:half])]


def both_orders(first: Int32s, second: Int32s, specials: SpecialIds, limit: int) -> list[Int32s]:
    """[S a D b E, S b D a E], two int32 [T] of the same T <= limit; their final states are added before the head."""
    return pair(first, second, specials, limit) + pair(second, first, specials, limit)


def choice(
    document: Int32s, question: Int32s | None, choices: list[Int32s], specials: SpecialIds, limit: int
) -> list[Int32s]:
    """[S document question D choice E] per choice, each an int32 [T] with T <= limit; the document is cut alike in all.

    `question` follows the document without a delimiter; None where the task has none.
    """
    if question is None:
        half = pair_limit(limit)
        return [_join(specials, document[:half], one[:half]) for one in choices]
    quarter = _checked(limit) // 4 - 1
    question, choices = question[:quarter], [one[:quarter] for one in choices]
    left = limit - 3 - len(question) - max(map(len, choices))
    context = np.concatenate([document[:left], question])
    return [_join(specials, context, one) for one in choices]


def pair_limit(limit: int) -> int:
    """Tokens that each of two texts may have in a sequence of `limit` tokens."""
    return _checked(limit) // 2 - 2


def _join(specials: SpecialIds, *texts: Int32s) -> Int32s:
    parts = [texts[0]]
    for text in texts[1:]:
        parts += [np.array([specials.delimiter], dtype=np.int32), text]
    ends = [np.array([number], dtype=np.int32) for number in (specials.start, specials.extract)]
    return np.concatenate([ends[0], *parts, ends[1]]).astype(np.int32)


def _checked(limit: int) -> int:
    assert limit >= SHORTEST, f"a limit of {limit} tokens leaves no room for texts"
    return limit
