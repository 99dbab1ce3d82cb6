"""The published unigram model of T5: its `spiece.model`, the file `unigram.json` of earlier versions' imports, and its
`tokenizer.json`.

Text is normalised (NFKC and some more, by the file's own map of characters), cut at white space, and each word, with
U+2581 before it, into the pieces whose log-probabilities have the largest sum. What has no piece is `<unk>`. After the
pieces come the sentinels `<extra_id_k>`, the first one last; SentencePiece's file does not have them.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import parse_json
from gpt1_ds.common.text import is_utf8
from gpt1_ds.data.tokenizers import json_sections, sentencepiece_model
from gpt1_ds.data.tokenizers.base import Metadata, SpecialIds
from gpt1_ds.data.tokenizers.sentencepiece_model import CONTROL, NORMAL, UNIGRAM, UNKNOWN
from gpt1_ds.data.tokenizers.tokenizer_json import TokenizerJson
from gpt1_ds.data.tokenizers.word_cutting import METASPACE

PUBLISHED = "spiece.model"  # the file that T5 comes with
MODEL = "unigram.json"
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


def load(folder: Path, metadata: Metadata) -> TokenizerJson:
    """Returns the tokenizer of a folder with the file MODEL."""
    path, sentinels = folder / MODEL, metadata.special_ids.sentinels or 0
    model = read_model(path, path.read_bytes())
    if len(model.pieces) + sentinels != metadata.vocab_size or model.special_ids(sentinels) != metadata.special_ids:
        raise DataError(f"{path}: not the pieces of the metadata; copy the folder again")
    return TokenizerJson(path, metadata, contents(model, sentinels))


def contents(model: Model, sentinels: int) -> dict[str, Any]:
    """Returns its `tokenizer.json`, as transformers writes it: each symbol is a piece, too."""
    last = len(model.pieces) + sentinels - 1
    added = {f"<extra_id_{number}>": last - number for number in reversed(range(sentinels))}
    symbols = dict(sorted((model.symbols | added).items(), key=lambda item: item[1]))
    charsmap = base64.b64encode(model.charsmap).decode()
    return json_sections.whole_file(
        symbols,
        {"type": "Precompiled", "precompiled_charsmap": charsmap} if charsmap else None,
        {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]},
        METASPACE,
        {
            "type": "Unigram",
            "unk_id": model.symbols[UNKNOWN_SYMBOL],
            "vocab": [*model.pieces, *((symbol, 0.0) for symbol in added)],
            "byte_fallback": False,
        },
        json_sections.eod_template(symbols, model.symbols[SYMBOLS["eod"]]),
    )


def model_of_file(path: Path, content: bytes) -> Model | None:
    """Returns the model in a SentencePiece file like T5's, None for another one. Raises DataError for what is none."""
    try:
        found = sentencepiece_model.read(content)
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
    """Returns the file MODEL. Raises DataError for what this program did not write."""
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
        if not isinstance(piece, str) or not piece or piece in seen or not is_utf8(piece):
            raise DataError(f"{path}: the piece {number} ({piece!a:.60}) is empty, no text or there twice; {_AGAIN}")
        if not isinstance(score, float) or not math.isfinite(score):
            raise DataError(f"{path}: the score of the piece {number} is {score!a:.40}, not a number; {_AGAIN}")
        seen.add(piece)
    if missing := [symbol for symbol in (UNKNOWN_SYMBOL, *SYMBOLS.values()) if symbol not in seen]:
        raise DataError(f"{path}: has no {', '.join(missing)}: not a vocabulary of T5's kind; name T5's {PUBLISHED}")
    try:
        if charsmap:
            sentencepiece_model.check_charsmap(charsmap)
    except ValueError as error:
        raise DataError(f"{path}: {error!s:.100}; {_AGAIN}") from None
    return Model(pieces, charsmap)
