"""The published unigram model of T5, by the `tokenizers` library: the ids of transformers' T5Tokenizer.

Text is normalised (NFKC and some more, by the file's own map of characters), cut at white space, and each word, with
U+2581 before it, into the pieces whose log-probabilities have the largest sum. What has no piece is `<unk>`. Words are
encoded once and remembered: no piece reaches across a space. After the pieces come the sentinels `<extra_id_k>`, the
first one last; SentencePiece's file does not have them.

Decoding gives the gist, not the text: white space, and characters that NFKC maps to others, are lost.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import parse_json
from gpt1_ds.data.tokenizers import sentencepiece_file
from gpt1_ds.data.tokenizers.base import Metadata, SpecialIds, WordCache, ids_as_bytes
from gpt1_ds.data.tokenizers.pieces import PieceTokenizer
from gpt1_ds.data.tokenizers.sentencepiece_file import CONTROL, NORMAL, UNIGRAM, UNKNOWN

PUBLISHED = "spiece.model"  # the file that T5 comes with
MODEL = "unigram.json"
SPACE = "\u2581"
ASCII = "".join(map(chr, range(0x21, 0x7F)))  # what is printed, without the space
UNKNOWN_SYMBOL, SYMBOLS = "<unk>", {"pad": "<pad>", "eod": "</s>"}
SENTINELS = 100  # of T5
_AGAIN = "download it again"


@dataclass(frozen=True)
class Model:
    """The pieces by id, each with its log-probability, and the compiled map of characters."""

    pieces: tuple[tuple[str, float], ...]
    charsmap: bytes

    @cached_property
    def symbols(self) -> dict[str, int]:
        """Symbol -> id of the control symbols and of `<unk>`."""
        return {
            piece: number
            for number, (piece, _) in enumerate(self.pieces)
            if piece in (UNKNOWN_SYMBOL, *SYMBOLS.values())
        }

    def special_ids(self, sentinels: int) -> SpecialIds:
        roles = {role: self.symbols[symbol] for role, symbol in SYMBOLS.items()}
        return SpecialIds(unknown=self.symbols[UNKNOWN_SYMBOL], **roles, sentinels=sentinels or None)

    def as_bytes(self) -> bytes:
        """The file MODEL."""
        charsmap = base64.b64encode(self.charsmap).decode()
        return json.dumps({"charsmap": charsmap, "pieces": self.pieces}, ensure_ascii=False).encode()


class T5Unigram(PieceTokenizer):
    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(metadata)
        path, sentinels = folder / MODEL, self.special_ids.sentinels or 0
        self.model = read_model(path, path.read_bytes())
        size = len(self.model.pieces) + sentinels
        if size != self.vocab_size or self.model.special_ids(sentinels) != self.special_ids:
            raise DataError(f"{path}: not the pieces of the metadata; copy the folder again")
        last = self.vocab_size - 1
        self.symbols = self.model.symbols | {f"<extra_id_{k}>": last - k for k in reversed(range(sentinels))}
        texts = [piece.replace(SPACE, " ").encode() for piece, _ in self.model.pieces]
        for number in self.model.symbols.values():
            texts[number] = b""
        self.pieces = texts + [b""] * sentinels
        self._backend = backend(self.model)
        self._pieces_of = self._backend.model.tokenize
        self._keeps_ascii = not self.model.charsmap or self._backend.normalizer.normalize_str(ASCII) == ASCII
        self._words = WordCache(lambda word: self._encode_word(word, " "))
        self._at_line_start = WordCache(lambda word: self._encode_word(word, ""))  # those that begin with other letters

    def encode_part(self, text: str, previous: str, continues: bool = False) -> NDArray[np.int32]:
        at_line_start, words, word_ids = self._at_line_start, self._words, self._words.__getitem__
        ids: list[bytes] = []
        for line in text.split("\n"):
            first, *rest = line.split(" ")
            ids.append((words if first[:1].isascii() else at_line_start)[first])
            ids.extend(map(word_ids, rest))
        return np.frombuffer(bytearray().join(ids), dtype=np.int32)

    def _encode_word(self, word: str, before: str) -> bytes:
        """int32 ids. Marks that begin a word are normalised together with the space `before` it."""
        if word and word.isascii() and word.isprintable() and self._keeps_ascii:  # half the time of the whole pipeline
            return ids_as_bytes(piece.id for piece in self._pieces_of(f"{SPACE}{word}"))
        return ids_as_bytes(self._backend.encode(f"{before}{word}", add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Words with one space between them; unknown characters are lost."""
        return super().decode(ids).removeprefix(" ")


def backend(model: Model) -> Any:
    """The library's tokenizer, without control symbols: their names in a text are ordinary text. A piece with a space
    never fits, as text is cut there.
    """
    import tokenizers

    pieces = [(f" {piece}" if piece in model.symbols else piece, score) for piece, score in model.pieces]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, model.symbols[UNKNOWN_SYMBOL], False))
    if model.charsmap:
        made.normalizer = tokenizers.normalizers.Precompiled(model.charsmap)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.WhitespaceSplit(),
            tokenizers.pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True),
        ]
    )
    made.decoder = tokenizers.decoders.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    return made


def model_of_file(path: Path, content: bytes) -> Model | None:
    """Of a SentencePiece file like T5's, None of another one. Raises DataError for what is none."""
    try:
        found = sentencepiece_file.read(content)
    except ValueError as error:
        raise DataError(f"{path}: not a SentencePiece model ({error!s:.100}); {_AGAIN}") from None
    types = {UNKNOWN_SYMBOL: UNKNOWN, **dict.fromkeys(SYMBOLS.values(), CONTROL)}
    if (
        found.model_type != UNIGRAM
        or not found.usual_spaces
        or any(piece.type != types.get(piece.text, NORMAL) for piece in found.pieces)
        or not types.keys() <= {piece.text for piece in found.pieces}
    ):
        return None
    return checked(path, tuple((piece.text, piece.score) for piece in found.pieces), found.charsmap)


def read_model(path: Path, content: bytes) -> Model:
    """The file MODEL. Raises DataError for what this program did not write."""
    try:
        values = parse_json(content)
        pieces = tuple((piece, score) for piece, score in values["pieces"])
        charsmap = base64.b64decode(values["charsmap"], validate=True)
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: not the pieces of a unigram model; copy the folder again") from None
    return checked(path, pieces, charsmap)


def checked(path: Path, pieces: tuple[tuple[Any, Any], ...], charsmap: bytes) -> Model:
    """Raises DataError for pieces or a map that the library cannot take, or that lack a symbol."""
    seen: set[str] = set()
    for number, (piece, score) in enumerate(pieces):
        if not isinstance(piece, str) or not piece or piece in seen or not _is_text(piece):
            raise DataError(f"{path}: the piece {number} ({piece!a:.60}) is empty, no text or there twice; {_AGAIN}")
        if not isinstance(score, float) or not math.isfinite(score):
            raise DataError(f"{path}: the score of the piece {number} is {score!a:.40}, not a number; {_AGAIN}")
        seen.add(piece)
    if missing := [symbol for symbol in (UNKNOWN_SYMBOL, *SYMBOLS.values()) if symbol not in seen]:
        raise DataError(f"{path}: has no {', '.join(missing)}: not a vocabulary of T5's kind; name T5's {PUBLISHED}")
    try:
        if charsmap:
            sentencepiece_file.check_charsmap(charsmap)
    except ValueError as error:
        raise DataError(f"{path}: {error!s:.100}; {_AGAIN}") from None
    return Model(pieces, charsmap)


def _is_text(piece: str) -> bool:
    """Whether it can be written as UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in piece)
