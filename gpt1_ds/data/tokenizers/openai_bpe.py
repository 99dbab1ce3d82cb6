"""The vocabulary and text pipeline of the 2018 release (GPT1.md section 1), with an encoder of our own.

ftfy repairs the text, text_standardize spaces out punctuation, spaCy splits words, each is lower-cased and merged into
pieces, the last of which ends in `</w>`. All but ftfy works on what lies between two blanks, so the result of each step
is remembered; ftfy is left out for lines it cannot change. Both give the ids of the original, much faster.

The original's pattern writes the backslash unescaped, so it matches one more plus sign instead of backslashes, and they
stay attached to their words; so they do here.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.text import is_utf8
from gpt1_ds.data.tokenizers.base import Metadata, SpecialIds, Tokenizer, WordCache, ids_as_bytes, published_json

if TYPE_CHECKING:
    from spacy.tokenizer import Tokenizer as SpacyTokenizer

VOCABULARY, MERGES = "encoder_bpe_40000.json", "vocab_40000.bpe"
TEXT_IDS, MERGE_COUNT = 40478, 40000
SPECIAL_IDS = SpecialIds(unknown=0, start=40478, delimiter=40479, extract=40480, eod=40481)
END = "</w>"
NEWLINE = f"\n{END}"
MAX_SPACY_WORDS = 1 << 15  # spaCy remembers every word it meets; after this many it is made anew, in 0.06 s
_DASHES = str.maketrans({"\u2014": "-", "\u2013": "-", "\u2015": "-", "\u2026": "...", "\u00b4": "'"})
_PUNCTUATION = re.compile(r"""(-+|~+|!+|"+|;+|\?+|\++|,+|\)+|\(+|\/+|\*+|\[+|\]+|}+|{+|\|+|_+)""")
_FTFY_ASCII = re.compile(r"[&\x00-\x08\x0b-\x1f\x7f]")  # the ASCII characters that ftfy may change
_MISSING = "the 2018 tokenizer needs ftfy and spaCy; run `pip install 'gpt1-ds[openai]'`"


class OpenAIBpe(Tokenizer):
    """Lower-cases, and knows no characters beyond the 238 of the release: decoding gives the gist, not the text."""

    gives_text_back = False

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(metadata)
        # id of every piece of the release: the four symbols added after them have no text
        self.pieces = read_vocabulary(folder / VOCABULARY, (folder / VOCABULARY).read_bytes())
        merges = read_merges(folder / MERGES, (folder / MERGES).read_bytes())
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._texts = [""] * self.vocab_size
        for piece, number in self.pieces.items():
            self._texts[number] = piece.replace(END, " ")
        self._texts[self.pieces[NEWLINE]], self._texts[self.unknown_id] = "\n", ""
        self._words = WordCache(self._encode_word)
        self._parts = WordCache(self._encode_part)
        self._tokens = WordCache(self._encode_token)
        self._newline = ids_as_bytes([self.pieces[NEWLINE]])
        self._split: SpacyTokenizer | None = None
        self._split_words = 0

    def encode_part(self, text: str, previous: str, continues: bool = False) -> NDArray[np.int32]:
        """Returns ids in which line ends, however many follow one another, are one newline id, and none at the
        beginning and the end of the text.

        A `<` switches ftfy's reading of `&amp;` off for the rest of the piece, where the original did it for the rest
        of the text. Raises DataError when ftfy or spaCy is not installed.
        """
        word, newline = self._words.__getitem__, self._newline
        ids: list[bytes] = []
        pending = previous == "\n"
        for number, line in enumerate(_fix(text).split("\n")):
            pending = pending or number > 0
            if words := line.split():
                if pending and (ids or previous):
                    ids.append(newline)
                ids.extend([self._encode_part(joined)] if (joined := _joined(line)) else map(word, words))
                pending = False
        return np.frombuffer(bytearray().join(ids), dtype=np.int32)

    def encode_with_places(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Where a step before the merges changes how many letters a word or a line has, each of its ids stands for all
        of it. An id of a line end stands for the blanks before its line.
        """
        ids: list[int] = []
        places: list[tuple[int, int]] = []
        start, pending = 0, False
        for line, fixed in _fixed_lines(text):
            for one in fixed.split("\n"):
                if words := one.split():
                    if pending and ids:
                        ids.append(self.pieces[NEWLINE])
                        places.append((start, start))
                    for pieces, first, stop in self._cut_line(line, one, words):
                        ids += [self.pieces.get(piece, self.unknown_id) for piece in pieces]
                        places += ((start + a, start + b) for a, b in _placed(pieces, line[first:stop], first))
                    pending = False
                pending = True
            start += len(line) + 1
        return np.array(ids, dtype=np.int32), np.array(places, dtype=np.int64).reshape(-1, 2)

    def _cut_line(self, line: str, fixed: str, words: list[str]) -> Iterator[tuple[list[str], int, int]]:
        """Yields the pieces of each word of the line `fixed`, and the characters of `line` that the word stands at."""
        found = list(re.finditer(r"\S+", line))
        if joined := _joined(fixed):
            yield self._pieces(joined), 0, len(line)
        elif len(found) != len(words):
            yield [piece for word in words for piece in self._pieces_of_word(word)], 0, len(line)
        else:
            for word, place in zip(words, found, strict=True):
                yield self._pieces_of_word(word), *place.span()

    def _pieces_of_word(self, word: str) -> list[str]:
        return [piece for part in _spaced(word) for piece in self._pieces(part)]

    def _pieces(self, part: str) -> list[str]:
        return [piece for token in self._spacy()(part) for piece in merge(token.text.lower(), self.ranks)]

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        return "".join(map(self._texts.__getitem__, self.checked(ids)))

    def token_bytes(self) -> NDArray[np.int32]:
        """Returns bytes of the text that `decode` gives; the original text's layout and capitals are lost."""
        return np.array([len(text.encode()) for text in self._texts], dtype=np.int32)

    def _encode_word(self, word: str) -> bytes:
        """Returns int32 ids of what lies between two blanks."""
        return b"".join(map(self._parts.__getitem__, _spaced(word)))

    def _encode_part(self, part: str) -> bytes:
        """Returns int32 ids of what lies between two blanks of spaced out text, or of a line that is split as a
        whole.
        """
        return b"".join(self._tokens[token.text.lower()] for token in self._spacy()(part))

    def _encode_token(self, token: str) -> bytes:
        return ids_as_bytes(self.pieces.get(piece, self.unknown_id) for piece in merge(token, self.ranks))

    def _spacy(self) -> SpacyTokenizer:
        if self._split is None or self._split_words >= MAX_SPACY_WORDS:
            try:
                from spacy.lang.en import English
            except ImportError:
                raise DataError(_MISSING) from None
            self._split, self._split_words = English().tokenizer, 0
        self._split_words += 1
        return self._split


def _placed(pieces: list[str], text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yields the characters that each piece of `text`, which begins at `start`, stands for."""
    lengths = [len(piece.removesuffix(END)) for piece in pieces]
    letters = [len("".join(_spaced(letter)).lower()) for letter in text]
    if sum(lengths) != sum(letters):
        yield from [(start, start + len(text))] * len(pieces)
        return
    letter_of = np.repeat(np.arange(start, start + len(text)), letters).tolist()
    stop = 0
    for length in lengths:
        first, stop = stop, stop + length
        yield letter_of[first], letter_of[stop - 1] + 1


def _spaced(text: str) -> list[str]:
    """Returns what text_standardize makes of it, cut at blanks."""
    return _PUNCTUATION.sub(r" \1 ", text.translate(_DASHES)).split()


def _joined(line: str) -> str:
    """Returns the spaced out line if spaCy has to see it as a whole, else "". It takes two apostrophes together for one
    token, but not after a word that ends in one: there the first two of the three match, and have a blank between them.
    """
    if "''" not in line and "\u00b4" not in line:
        return ""
    spaced = " ".join(_spaced(line))
    return spaced if "' ''" in spaced else ""


def merge(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Returns the pieces of a word: neighbours are merged in the order of their rank, equal ranks from left to right.

    The original merges all pairs of the lowest rank in one sweep. Here they come from a heap one by one, which is the
    same because a merge only uses pieces of earlier merges (checked on import) and makes long words affordable.
    """
    pieces = [*word[:-1], word[-1] + END]
    count = len(pieces)
    after, before = list(range(1, count + 1)), list(range(-1, count - 1))
    heap = [(rank, at) for at in range(count - 1) if (rank := ranks.get((pieces[at], pieces[at + 1]))) is not None]
    heapq.heapify(heap)
    while heap:
        rank, at = heapq.heappop(heap)
        following = after[at]
        if following >= count or ranks.get((pieces[at], pieces[following])) != rank:
            continue  # one of the two was merged already
        pieces[at] += pieces[following]
        pieces[following] = ""
        after[at] = after[following]
        if after[at] < count:
            before[after[at]] = at
        for left, right in ((before[at], at), (at, after[at])):
            if left >= 0 and right < count and (found := ranks.get((pieces[left], pieces[right]))) is not None:
                heapq.heappush(heap, (found, left))
    return [piece for piece in pieces if piece]


def _fix(text: str) -> str:
    """Returns ftfy.fix_text(text), calling it only for lines that it might change."""
    if text.isascii() and not _FTFY_ASCII.search(text):
        return text
    return "\n".join(fixed for _, fixed in _fixed_lines(text))


def _fixed_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yields each line of a text, and what ftfy makes of it."""
    unescape: Any = "auto"  # until a `<` is met, `&amp;` is taken for `&`
    lines = text.split("\n")
    for number, line in enumerate(lines):
        fixed = line
        if not line.isascii() or _FTFY_ASCII.search(line):
            end = "\n" if number < len(lines) - 1 else ""
            fixed = _ftfy()(line + end, unescape_html=unescape).removesuffix(end)
        yield line, fixed
        if "<" in line:
            unescape = False


def _ftfy() -> Callable[..., str]:
    try:
        import ftfy
    except ImportError:
        raise DataError(_MISSING) from None
    fix: Callable[..., str] = ftfy.fix_text
    return fix


def read_vocabulary(path: Path, content: bytes) -> dict[str, int]:
    """Returns piece -> id. Raises DataError for what is not the release's."""
    encoder: dict[str, int] = published_json(path, content)
    ids = list(encoder.values()) if isinstance(encoder, dict) else []
    whole = all(type(number) is int for number in ids) and sorted(ids) == list(range(TEXT_IDS))
    if not whole or not all(map(is_utf8, encoder)):
        raise DataError(f"{path}: not the released vocabulary of ids 0 to {TEXT_IDS - 1}; download it again")
    if NEWLINE not in encoder:
        raise DataError(f"{path}: has no id for the newline; download it again")
    return encoder


def read_merges(path: Path, content: bytes) -> list[tuple[str, str]]:
    """Returns the pairs in the order of their rank. Some pieces hold characters that `splitlines` would split at."""
    lines = content.decode(errors="replace").split("\n")[1:-1]
    merges = [(pair[0], pair[1]) for line in lines if len(pair := line.split()) == 2]
    if len(lines) != MERGE_COUNT or len(merges) != MERGE_COUNT or len(set(merges)) != MERGE_COUNT:
        raise DataError(f"{path}: {len(lines)} merges, not the released {MERGE_COUNT}; download it again")
    return merges


def check_merges(path: Path, merges: list[tuple[str, str]], encoder: dict[str, int]) -> None:
    """Each merge makes one new piece of pieces that are there before it; `merge` relies on it."""
    made = {first + second for first, second in merges}
    if len(made) != MERGE_COUNT:
        raise DataError(f"{path}: two merges make the same piece; download it again")
    known = encoder.keys() - made
    for rank, (first, second) in enumerate(merges):
        if first not in known or second not in known or first + second not in encoder:
            raise DataError(
                f"{path}: merge {rank} ({first!r} {second!r}) does not fit the vocabulary; download it again"
            )
        known.add(first + second)
