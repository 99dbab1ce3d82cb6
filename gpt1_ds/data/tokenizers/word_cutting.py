"""A text as words that the `tokenizers` library encodes one by one with the ids of the whole: each is encoded once and
remembered, which is several times faster than the library on the whole text, and a document may be cut.

It holds for three ways to split a text, those of GPT-2, BERT and T5, where the library looks for no added token in it.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.data.tokenizers.base import SPACE, WordCache, ids_as_bytes

METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}  # as T5 has it
_ASCII = "".join(map(chr, range(0x21, 0x7F)))  # what is printed, without the space
# Unicode's White_Space, which `\s` means in the library; Python's has four control characters more
_WHITE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_BLOCKS = re.compile(rf" ?[^{_WHITE}]+|[{_WHITE}]+(?![^{_WHITE}])|[{_WHITE}]+")
# Of blocks in these characters, the letters, digits and others that GPT-2's pattern knows, on any version of Unicode
_PLAIN = re.compile(r"[ -~\u2010-\u2027]*\Z")
_WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^ A-Za-z0-9]+")
_ENDS_IN_WHITE = re.compile(rf"[{_WHITE}]\Z")


class Words(ABC):
    """The way to split a text that `backend`, the library's tokenizer, has."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    @abstractmethod
    def encode_part(self, text: str, previous: str, continues: bool) -> NDArray[np.int32]:
        """Returns int32 [tokens], as `Tokenizer.encode_part`."""

    def _ids(self, word: str) -> bytes:
        """Returns int32 ids of a word, by the library."""
        return ids_as_bytes(self._backend.encode(word, add_special_tokens=False).ids)


def words_of(backend: Any) -> Words | None:
    """Returns the words of a text for the library's tokenizer `backend`; None where a text must be encoded as a
    whole.
    """
    if any(not token.special for token in backend.get_added_tokens_decoder().values()):
        return None  # it is looked for in the text, also across words
    kind, cutter = _state(backend.normalizer).get("type"), _state(backend.pre_tokenizer)
    if kind is None and cutter.get("type") == "ByteLevel" and cutter["use_regex"]:
        return ByteLevelWords(backend, cutter["add_prefix_space"])
    if kind == "BertNormalizer" and cutter.get("type") == "BertPreTokenizer":
        return WordsBetweenBlanks(backend)
    parts = cutter.get("pretokenizers", [])
    if kind in (None, "Precompiled") and parts == [{"type": "WhitespaceSplit"}, METASPACE]:
        return WordsWithSpace(backend)
    return None


def _state(part: Any) -> Any:
    """Returns the JSON form of a normalizer or pre-tokenizer, as the library writes it; empty where there is none."""
    return {} if part is None else json.loads(part.__getstate__())


class ByteLevelWords(Words):
    """GPT-2's pattern cuts a text into words before merging; no match of it crosses from a character into the white
    space after it. So a text's ids are those of its blocks (what stands between white space, with one space before it)
    and of its runs of white space.
    """

    def __init__(self, backend: Any, begins_with_space: bool) -> None:
        from tokenizers.pre_tokenizers import ByteLevel

        super().__init__(backend)
        self._begins_with_space = begins_with_space
        self._cut = ByteLevel(add_prefix_space=False).pre_tokenize_str  # no other word than a text's first gets one
        self._pieces_of = backend.model.tokenize
        self._blocks, self._words = WordCache(self._encode_block), WordCache(self._encode_words)

    def encode_part(self, text: str, previous: str, continues: bool) -> NDArray[np.int32]:
        if self._begins_with_space and text and not previous and not text.startswith(" "):
            text = f" {text}"
        if continues and _ENDS_IN_WHITE.search(text) and not text.endswith(" "):
            blocks = _BLOCKS.findall(f"{text}x")[:-1]  # the last line end is a token of its own, before other text
        else:
            blocks = _BLOCKS.findall(text)
        return np.frombuffer(bytearray().join(map(self._blocks.__getitem__, blocks)), dtype=np.int32)

    def _encode_block(self, block: str) -> bytes:
        """Returns int32 ids of a block; the words of a plain one are remembered, too."""
        if len(block) > 1 and _PLAIN.match(block) and not block.isspace():
            return b"".join(map(self._words.__getitem__, _WORDS.findall(block)))
        return self._encode_words(block)

    def _encode_words(self, text: str) -> bytes:
        return ids_as_bytes(piece.id for word, _ in self._cut(text) for piece in self._pieces_of(word))


class WordsBetweenBlanks(Words):
    """Every step of BERT's works on what stands between two blanks."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self._words = WordCache(self._ids)

    def encode_part(self, text: str, previous: str, continues: bool) -> NDArray[np.int32]:
        words = text.replace("\n", " ").split(" ")
        return np.frombuffer(bytearray().join(map(self._words.__getitem__, words)), dtype=np.int32)


class WordsWithSpace(Words):
    """T5's text is cut at white space, and U+2581 put before each word, so that no piece reaches across a space."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self._pieces_of = backend.model.tokenize
        self._keeps_ascii = backend.normalizer is None or backend.normalizer.normalize_str(_ASCII) == _ASCII
        self._words = WordCache(lambda word: self._encode_word(word, " "))
        self._at_line_start = WordCache(lambda word: self._encode_word(word, ""))  # those that begin with other letters

    def encode_part(self, text: str, previous: str, continues: bool) -> NDArray[np.int32]:
        at_line_start, words, word_ids = self._at_line_start, self._words, self._words.__getitem__
        ids: list[bytes] = []
        for line in text.split("\n"):
            first, *rest = line.split(" ")
            ids.append((words if first[:1].isascii() else at_line_start)[first])
            ids.extend(map(word_ids, rest))
        return np.frombuffer(bytearray().join(ids), dtype=np.int32)

    def _encode_word(self, word: str, before: str) -> bytes:
        """Returns int32 ids. Marks that begin a word are normalised together with the space `before` it."""
        if word and word.isascii() and word.isprintable() and self._keeps_ascii:  # half the time of the whole pipeline
            return ids_as_bytes(piece.id for piece in self._pieces_of(f"{SPACE}{word}"))
        return self._ids(f"{before}{word}")
