"""Byte-level BPE as GPT-2 and RoBERTa have it, by the `tokenizers` library: decode(encode(t)) == t for every text.

Text is bytes, each written as a visible character, so nothing is unknown. GPT-2's pattern cuts a text into words before
merging; no match of it crosses from a character into the white space after it. So a text's ids are those of its blocks
(what lies between white space, with one space before it) and of its runs of white space; they are encoded once and
remembered, which is faster than the library on the whole text and gives the same ids.

The vocabulary file may hold the control symbols or not: a role whose id it lacks is named `<role>`. The library is told
of none, so their names in a text are ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import parse_json
from gpt1_ds.data.tokenizers.base import Metadata, SpecialIds, WordCache, ids_as_bytes
from gpt1_ds.data.tokenizers.pieces import PieceTokenizer

VOCABULARY, MERGES = "vocab.json", "merges.txt"
ENDOFTEXT = "<|endoftext|>"
TASK_SYMBOLS = {"start": "<start>", "delimiter": "<delimiter>", "extract": "<extract>"}
MASK_SYMBOLS = {"cls": "<cls>", "separator": "<sep>", "pad": "<pad>", "mask": "<mask>"}
OWN_SYMBOLS = {"eod": ENDOFTEXT, **TASK_SYMBOLS, **MASK_SYMBOLS}
ROBERTA_SYMBOLS = {
    "unknown": "<unk>",
    "eod": "</s>",
    "cls": "<s>",
    "separator": "</s>",
    "pad": "<pad>",
    "mask": "<mask>",
}
_AGAIN = "download it again"
# Unicode's White_Space, which `\s` means in the library; Python's has four control characters more
_WHITE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_BLOCKS = re.compile(rf" ?[^{_WHITE}]+|[{_WHITE}]+(?![^{_WHITE}])|[{_WHITE}]+")
# Of blocks in these characters, the letters, digits and others that GPT-2's pattern knows, on any version of Unicode
_PLAIN = re.compile(r"[ -~\u2010-\u2027]*\Z")
_WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^ A-Za-z0-9]+")
_ENDS_IN_WHITE = re.compile(rf"[{_WHITE}]\Z")


def _letters_of_bytes() -> dict[int, str]:
    """Byte -> the character that stands for it (`bytes_to_unicode` of GPT-2's encoder.py)."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + at) for at, byte in enumerate(others)}


BYTE_LETTERS = _letters_of_bytes()
_BYTE_OF = {letter: byte for byte, letter in BYTE_LETTERS.items()}


class Gpt2Bpe(PieceTokenizer):
    """Every id is a control symbol or the bytes of a piece of text."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(metadata)
        path = folder / VOCABULARY
        self.vocabulary = read_vocabulary(path, path.read_bytes())
        self.merges = read_merges(folder / MERGES, (folder / MERGES).read_bytes(), self.vocabulary)
        names = {number: piece for piece, number in self.vocabulary.items()}
        roles = metadata.special_ids.present()
        appended = {number for number in roles.values() if number not in names}  # ids below vocab_size, as was checked
        if len(names) + len(appended) != self.vocab_size:
            raise DataError(f"{path}: has {len(names)} ids, not {self.vocab_size}; copy the folder again")
        # name -> id of every control symbol
        self.symbols = {names.get(number, OWN_SYMBOLS.get(role, f"<{role}>")): number for role, number in roles.items()}
        self.pieces = [_piece_bytes(names.get(number, "")) for number in range(self.vocab_size)]
        for number in roles.values():
            self.pieces[number] = b""
        self.backend = backend(self.vocabulary, self.merges)
        self._blocks = WordCache(self._encode_block)
        self._words = WordCache(self._encode_word)

    @property
    def is_roberta(self) -> bool:
        return is_roberta(self.vocabulary)

    def encode_part(self, text: str, previous: str, continues: bool = False) -> NDArray[np.int32]:
        if continues and _ENDS_IN_WHITE.search(text) and not text.endswith(" "):
            blocks = _BLOCKS.findall(f"{text}x")[:-1]  # the last line end is a token of its own, before other text
        else:
            blocks = _BLOCKS.findall(text)
        return np.frombuffer(bytearray().join(map(self._blocks.__getitem__, blocks)), dtype=np.int32)

    def _encode_block(self, block: str) -> bytes:
        """int32 ids of a block; the words of a plain one are remembered, too."""
        if len(block) > 1 and _PLAIN.match(block) and not block.isspace():
            return b"".join(map(self._words.__getitem__, _WORDS.findall(block)))
        return self._encode_word(block)

    def _encode_word(self, word: str) -> bytes:
        return ids_as_bytes(self.backend.encode(word, add_special_tokens=False).ids)


def backend(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    """The library's tokenizer, without control symbols."""
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


def is_roberta(vocabulary: Mapping[str, int]) -> bool:
    """Whether this is fairseq's order of ids, which begins with its own control symbols."""
    return all(symbol in vocabulary for symbol in ROBERTA_SYMBOLS.values())


def special_ids(vocabulary: Mapping[str, int]) -> SpecialIds:
    """The roles whose symbols a vocabulary holds: RoBERTa's, else those of GPT-2 and of this program."""
    symbols = ROBERTA_SYMBOLS if is_roberta(vocabulary) else OWN_SYMBOLS
    return SpecialIds(**{role: vocabulary[symbol] for role, symbol in symbols.items() if symbol in vocabulary})


def _piece_bytes(piece: str) -> bytes:
    """Names that no text makes, like RoBERTa's `madeupword0000`, are their own text, as in transformers."""
    return bytes(map(_BYTE_OF.__getitem__, piece))


def read_vocabulary(path: Path, content: bytes) -> dict[str, int]:
    """Piece -> id. Raises DataError for what is no byte-level vocabulary."""
    try:
        vocabulary: dict[str, int] = parse_json(content)
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error!s:.200}); {_AGAIN}") from None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    if not ids or not all(type(number) is int for number in ids) or sorted(ids) != list(range(len(ids))):
        raise DataError(f"{path}: not a vocabulary with the ids 0, 1, 2, ...; {_AGAIN}")
    if missing := [byte for byte, letter in BYTE_LETTERS.items() if letter not in vocabulary]:
        raise DataError(f"{path}: has no id for the byte {missing[0]}; {_AGAIN}, or import it as what it is")
    wrong = next((piece for piece in vocabulary if not piece or not _BYTE_OF.keys() >= set(piece)), None)
    if wrong is not None:
        raise DataError(f"{path}: the piece {wrong!a:.60} is not written in GPT-2's letters for bytes; {_AGAIN}")
    return vocabulary


def read_merges(path: Path, content: bytes, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs in the order of their rank. Raises DataError for those that do not fit the vocabulary."""
    try:
        lines = content.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; {_AGAIN}") from None
    lines = lines[1:] if lines[0].startswith("#version") else lines
    merges: list[tuple[str, str]] = []
    for rank, line in enumerate(lines):
        first, _, second = line.partition(" ")
        if first not in vocabulary or second not in vocabulary or first + second not in vocabulary:
            raise DataError(f"{path}: merge {rank} ({line!a:.60}) does not fit the vocabulary; {_AGAIN}")
        merges.append((first, second))
    return merges
