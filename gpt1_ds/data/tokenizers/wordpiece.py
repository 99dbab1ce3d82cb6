"""WordPiece as BERT has it, by the `tokenizers` library.

Text is cleaned of control characters, Chinese characters get blanks around them, an uncased vocabulary lower-cases and
strips accents (NFD), words are split at white space and punctuation, and each word is cut greedily into the longest
pieces there are, of which all but the first begin with `##`. A word of more than 100 characters, or with a character
that has no piece, is `[UNK]`. Every step works on what lies between two blanks, which is encoded once and remembered.

Decoding gives the gist, not the text: layout is lost, and capitals and accents too where the vocabulary is uncased.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import parse_json
from gpt1_ds.data.tokenizers.base import Metadata, SpecialIds, Tokenizer, WordCache, ids_as_bytes

VOCABULARY, SETTINGS = "vocab.txt", "tokenizer_config.json"
LOWER_CASE = "do_lower_case"  # the key of SETTINGS, as BERT's folders have it
SYMBOLS = {"pad": "[PAD]", "unknown": "[UNK]", "cls": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"}
CONTINUES = "##"
LONGEST_WORD = 100  # characters
_AGAIN = "download it again"


class WordPiece(Tokenizer):
    """`eod` is `[SEP]`, as BERT has no other symbol that ends a text."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(metadata)
        path = folder / VOCABULARY
        self.vocabulary = read_vocabulary(path, path.read_bytes())
        if len(self.vocabulary) != self.vocab_size or special_ids(self.vocabulary) != self.special_ids:
            raise DataError(f"{path}: not the vocabulary of the metadata; copy the folder again")
        self.lower_case = read_settings(folder / SETTINGS, (folder / SETTINGS).read_bytes())
        self.symbols = {symbol: self.vocabulary[symbol] for symbol in SYMBOLS.values()}
        self.backend = backend(self.vocabulary, self.lower_case)
        self._specials = frozenset(self.symbols.values())
        self._words = WordCache(lambda word: ids_as_bytes(self.backend.encode(word, add_special_tokens=False).ids))

    def encode_part(self, text: str, previous: str, continues: bool = False) -> NDArray[np.int32]:
        words = text.replace("\n", " ").split(" ")
        return np.frombuffer(bytearray().join(map(self._words.__getitem__, words)), dtype=np.int32)

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Words with one blank between them, as transformers decodes without special tokens; unknown words are lost."""
        text: str = self.backend.decode([number for number in self.checked(ids) if number not in self._specials])
        return text

    def token_bytes(self) -> NDArray[np.int32]:
        """Of the piece, and of one blank before what begins with a letter or a digit: an estimate of the original's.

        What BERT's clean-up takes away is not counted, so bits per byte of the original need the bytes of the original.
        """
        sizes = np.zeros(self.vocab_size, dtype=np.int32)
        for piece, number in self.vocabulary.items():
            text = piece.removeprefix(CONTINUES)
            if number not in self._specials:
                sizes[number] = len(text.encode()) + (text == piece and text[0].isalnum())
        return sizes

    def begins_word(self) -> NDArray[np.bool_]:
        begins = np.ones(self.vocab_size, dtype=np.bool_)
        begins[[number for piece, number in self.vocabulary.items() if piece.startswith(CONTINUES)]] = False
        return begins


def backend(vocabulary: dict[str, int], lower_case: bool) -> Any:
    """The library's tokenizer, without control symbols: their names in a text are ordinary text."""
    import tokenizers

    model = tokenizers.models.WordPiece(
        vocabulary,
        unk_token=SYMBOLS["unknown"],
        max_input_chars_per_word=LONGEST_WORD,
        continuing_subword_prefix=CONTINUES,
    )
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizer(lower_case)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece(prefix=CONTINUES)
    return made


def normalizer(lower_case: bool) -> Any:
    import tokenizers

    return tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lower_case
    )


def special_ids(vocabulary: dict[str, int]) -> SpecialIds:
    ids = {role: vocabulary[symbol] for role, symbol in SYMBOLS.items()}
    return SpecialIds(eod=ids["separator"], **ids)


def read_vocabulary(path: Path, content: bytes) -> dict[str, int]:
    """Piece -> id, the number of its line. Raises DataError for what is no vocabulary of BERT's kind."""
    try:
        pieces = content.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; {_AGAIN}") from None
    vocabulary: dict[str, int] = {}
    for number, piece in enumerate(pieces):
        if not piece or piece in vocabulary:
            wrong = f"the piece {piece!a:.60} is there twice" if piece else "is empty"
            raise DataError(f"{path}: line {number + 1}: {wrong}; {_AGAIN}")
        vocabulary[piece] = number
    if missing := [symbol for symbol in SYMBOLS.values() if symbol not in vocabulary]:
        raise DataError(f"{path}: has no {', '.join(missing)}: not a vocabulary of BERT's kind; {_AGAIN}")
    return vocabulary


def settings(lower_case: bool) -> bytes:
    """The file SETTINGS."""
    return json.dumps({LOWER_CASE: lower_case}).encode()


def read_settings(path: Path, content: bytes) -> bool:
    """Whether text is lower-cased. Raises DataError for what does not say so."""
    try:
        lower_case = parse_json(content)[LOWER_CASE]
    except (ValueError, KeyError, TypeError):
        lower_case = None
    if not isinstance(lower_case, bool):
        raise DataError(f"{path}: does not say {LOWER_CASE}: true or false; copy the folder again")
    return lower_case
