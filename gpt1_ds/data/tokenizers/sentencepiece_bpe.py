"""A reversible SentencePiece BPE, decode(encode(text)) == text for every text, and its training.

SentencePiece writes a space as U+2581, so it would read a genuine U+2581 as a space: here that character, like every
other one outside the vocabulary, becomes the ids of its UTF-8 bytes. No piece holds a space after its first character,
so a line's ids are those of its words, each with the space before it; words are encoded once and remembered, which is
several times faster than encoding line by line and gives the same ids.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.base import (
    MASK_SYMBOLS,
    SPACE,
    Metadata,
    PieceTokenizer,
    SpecialIds,
    WordCache,
    ids_as_bytes,
)

MODEL = "tokenizer.model"
CONTROL_SYMBOLS = {"eod": "<eod>", "start": "<start>", "delimiter": "<delimiter>", "extract": "<extract>"}
PROBE = "A text  with\nall\t kinds: \u2581, caf\u00e9, \U0001f600."


def symbols(masks: bool, sentinels: int = 0) -> dict[str, str]:
    """Returns role -> control symbol, in the order of their ids. A model of sentinels pads."""
    padding = {"pad": MASK_SYMBOLS["pad"]} if sentinels else {}
    return CONTROL_SYMBOLS | (MASK_SYMBOLS if masks else padding)


def special_ids(masks: bool, sentinels: int = 0) -> SpecialIds:
    """`<unk>` is 0, the control symbols follow in their order, then the 256 bytes and the pieces; at the end the
    sentinels, which SentencePiece does not know.
    """
    roles = {role: number for number, role in enumerate(symbols(masks, sentinels), start=1)}
    return SpecialIds(unknown=0, **roles, sentinels=sentinels or None)


class SentencePieceBpe(PieceTokenizer):
    """Every id is a control symbol, one byte, or a piece of text with at most one space, at its beginning."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(metadata)
        import sentencepiece

        roles = self.special_ids.present()
        self.symbols = {
            symbol: roles[role] for role, symbol in (CONTROL_SYMBOLS | MASK_SYMBOLS).items() if role in roles
        }
        self.first_byte = 1 + len(self.symbols)  # id of the byte 0
        sentencepiece.SetMinLogLevel(3)  # its C++ log would spill on the terminal
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto((folder / MODEL).read_bytes())
            self.pieces = self._read_pieces(folder / MODEL)  # id -> UTF-8 bytes of text
        except (RuntimeError, UnicodeDecodeError):
            raise DataError(f"{folder / MODEL}: not a SentencePiece model; copy the folder again") from None
        self._space_ids = [self.first_byte + byte for byte in SPACE.encode()]
        self._newline = ids_as_bytes([self.first_byte + ord("\n")])
        self._at_line_start = WordCache(self._encode_words)
        self._after_space = WordCache(lambda word: self._encode_words(f" {word}"))
        if self.decode(self.encode(PROBE)) != PROBE:
            raise DataError(f"{folder / MODEL}: does not give a text back; make one with `gpt1-ds tokenizer train`")

    def encode_part(self, text: str, previous: str, continues: bool = False) -> NDArray[np.int32]:
        at_line_start, after_space, newline = self._at_line_start, self._after_space.__getitem__, self._newline
        ids: list[bytes] = []
        for line in text.split("\n"):
            first, *rest = line.split(" ")
            ids.append(at_line_start[first])
            ids.extend(map(after_space, rest))
            ids.append(newline)
        ids.pop()  # the last line has no line end
        return np.frombuffer(bytearray().join(ids), dtype=np.int32)

    def encode_with_places(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The pieces are the bytes of the text; a piece that is a part of a character's bytes stands for all of it."""
        ids = self.encode(text)
        letter_of_byte = np.repeat(np.arange(len(text)), [len(letter.encode()) for letter in text])
        stops = np.cumsum([len(self.pieces[number]) for number in ids.tolist()], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, dtype=np.int64), stops])[:-1]
        return ids, np.stack([letter_of_byte[starts], letter_of_byte[stops - 1] + 1], 1).reshape(-1, 2)

    @property
    def merged_pieces(self) -> list[str]:
        """Returns the text of every piece after the byte ids, by id: what comes earlier is merged first."""
        return [piece.decode() for piece in self.pieces[self.first_byte + 256 : self.first_sentinel]]

    def _encode_words(self, text: str) -> bytes:
        """Returns int32 ids of a text without a line end, by SentencePiece itself."""
        first, *rest = text.split(SPACE)
        ids: list[int] = self._model.EncodeAsIds(first)
        for part in rest:
            ids += self._space_ids
            ids += self._model.EncodeAsIds(part)
        return ids_as_bytes(ids)

    def _read_pieces(self, path: Path) -> list[bytes]:
        model = self._model
        sentinels = self.special_ids.sentinels or 0
        if (found := model.GetPieceSize() + sentinels) != self.vocab_size:
            raise DataError(f"{path}: has {found} pieces, not {self.vocab_size}; copy the folder again")
        first = self.first_byte
        specials = {symbol: model.PieceToId(symbol) for symbol in self.symbols}
        bytes_at = [model.PieceToId(f"<0x{byte:02X}>") for byte in range(256)]
        pieces = [model.IdToPiece(number) for number in range(model.GetPieceSize())]
        if (
            specials != self.symbols
            or self.special_ids != special_ids(self.special_ids.mask is not None, sentinels)
            or bytes_at != list(range(first, first + 256))
            or any(SPACE in piece[1:] for piece in pieces)
        ):
            raise DataError(f"{path}: not a model of this program; make one with `gpt1-ds tokenizer train`")
        texts = [piece.replace(SPACE, " ").encode() for piece in pieces]
        texts[first : first + 256] = [bytes([byte]) for byte in range(256)]
        texts[:first] = [b""] * first
        return texts + [b""] * sentinels


class SentencePieceUnigram(SentencePieceBpe):
    """The same around a unigram language model (Kudo 2018): its pieces have a space at the beginning or none, too, so
    that the best segmentation of a text is that of its words.
    """

    @property
    def scored(self) -> list[tuple[str, float]]:
        """By id: how the model spells it, with a space where a piece has one, and its log-probability."""
        model = self._model
        pieces = [(model.IdToPiece(number).replace(SPACE, " "), number) for number in range(model.GetPieceSize())]
        return [(piece, model.GetScore(number)) for piece, number in pieces]


_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")
_TOO_LARGE = re.compile(r"too high \(\d+\)\. Please set it to a value <= (\d+)")


def learn_sentencepiece(
    lines: Sequence[str],
    vocab_size: int,
    masks: bool = False,
    kind: Literal["bpe", "unigram"] = "bpe",
    sentinels: int = 0,
) -> bytes:
    """Returns the serialized SentencePiece model of `vocab_size` pieces, sentinels included, which are none of its own.
    Raises DataError naming the sizes that work.
    """
    import sentencepiece

    model = io.BytesIO()
    # From text without a blank (numbers, genomes) no piece would be learned for it, and its bytes do not decode to one.
    # A model holds its options, also empty ones: tokenizers of other text keep their bytes because they lack this one.
    blank: dict[str, Any] = {} if any(" " in line for line in lines) else {"required_chars": SPACE}
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size - sentinels,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            byte_fallback=True,
            **blank,
            control_symbols=list(symbols(masks, sentinels).values()),
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=3,  # its C++ log would spill on the terminal
        )
    except RuntimeError as error:
        if found := _TOO_SMALL.search(str(error)):
            least = int(found[1]) + sentinels
            raise DataError(
                f"--vocab-size={vocab_size} is too small for the characters of this text; use at least {least}"
            ) from None
        if found := _TOO_LARGE.search(str(error)):
            most = int(found[1]) + sentinels
            raise DataError(
                f"--vocab-size={vocab_size} is more than this text supports; use at most {most}, or more text"
            ) from None
        raise
    return model.getvalue()
