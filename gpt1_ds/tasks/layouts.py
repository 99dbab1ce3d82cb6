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

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.config.task import SHORTEST
from gpt1_ds.data.tokenizers.base import SpecialIds
from gpt1_ds.tasks.base import Layout

Int32s = NDArray[np.int32]


def lay_out(
    layout: Layout, texts: Sequence[Int32s], choices: Sequence[Int32s], specials: SpecialIds, limit: int
) -> list[Int32s]:
    """The C sequences of one example, each an int32 [T] with T <= limit.

    Both orders of two texts have the same T; their final states are added before the head. A document is cut alike for
    all its choices.
    """
    assert limit >= SHORTEST, f"a limit of {limit} tokens leaves nothing for texts"
    half, quarter = limit // 2 - 2, limit // 4 - 1
    if layout == "single":
        return [_join(specials, texts[0][: limit - 2])]
    if layout != "choice":
        pair = [text[:half] for text in texts]
        return [_join(specials, *order) for order in ([pair] if layout == "pair" else [pair, pair[::-1]])]
    if len(texts) == 1:
        return [_join(specials, texts[0][:half], choice[:half]) for choice in choices]
    question, choices = texts[1][:quarter], [choice[:quarter] for choice in choices]
    left = limit - 3 - len(question) - max(map(len, choices))
    context = np.concatenate([texts[0][:left], question])
    return [_join(specials, context, choice) for choice in choices]


def _join(specials: SpecialIds, *texts: Int32s) -> Int32s:
    start, delimiter, extract = (
        np.array([specials.require(role, "GPT-1's layout of texts")], dtype=np.int32)
        for role in ("start", "delimiter", "extract")
    )
    parts = [texts[0]]
    for text in texts[1:]:
        parts += [delimiter, text]
    return np.concatenate([start, *parts, extract]).astype(np.int32)
