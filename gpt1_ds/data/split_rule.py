"""Which documents of a corpus are held out for validation: a systematic sample, or the tail of the last document.

With `fraction` 0.1 the last of every ten documents is held out: 9, 19, 29 and so on. Of 2 documents, a tenth is less
than one. Then a tenth of all tokens is held out, from the end of document 1, or all of document 1 where it is shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True)
class SplitRule:
    """Holds out n * `fraction` (rounded down) of the first n of `documents` documents, for every n. Where that is none
    of all of them, the last one or its tail is held out.
    """

    fraction: float
    documents: int

    @cached_property
    def _ratio(self) -> Fraction:
        return Fraction(str(self.fraction)).limit_denominator(1_000_000)

    @property
    def is_less_than_one_document(self) -> bool:
        """Returns whether the fraction is of less than one document, although some text is to be held out."""
        return self.fraction > 0 and self.documents * self._ratio.numerator < self._ratio.denominator

    def held_out(self, first: int, count: int) -> NDArray[np.bool_]:
        """Returns bool [count]: whether each of documents first, first + 1, ... is held out as a whole."""
        numbers = np.arange(first, first + count, dtype=np.int64)
        if self.is_less_than_one_document:
            return np.equal(numbers, self.documents - 1)
        numerator, denominator = self._ratio.numerator, self._ratio.denominator
        return np.greater((numbers + 1) * numerator // denominator, numbers * numerator // denominator)

    def tail(self, tokens: int, last_tokens: int) -> int:
        """Returns how many tokens of the last document are held out, apart from its `<eod>`; 0 where whole documents
        are. It has `last_tokens` of all `tokens`; both numbers count `<eod>`.
        """
        if not self.is_less_than_one_document:
            return 0
        wanted = max(1, round((tokens - self.documents) * self.fraction))
        if self.documents == 1:
            return min(wanted, last_tokens - 1)
        return wanted if wanted < last_tokens - 1 else 0
