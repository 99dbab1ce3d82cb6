"""What a SentencePiece model file says: its pieces with their scores, and its normalisation.

The file is a protocol buffer (sentencepiece_model.proto of the library). The library's own reader of it is bound to one
version of protobuf, and its encoder does not show the normalisation; what is needed here is read field by field.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

NORMAL, UNKNOWN, CONTROL = 1, 2, 3  # types of pieces
UNIGRAM = 1  # type of the model
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of the file
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # how a value is written
_TEXT, _SCORE, _TYPE = 1, 2, 3  # fields of a piece
_MODEL_TYPE, _AS_SUFFIX = 3, 24  # fields of the trainer's settings: the model; spaces are written after their words
_CHARSMAP, _PREFIX, _SINGLE_SPACES, _VISIBLE_SPACES = 2, 3, 4, 5  # fields of the normaliser's settings


@dataclass(frozen=True)
class ModelPiece:
    text: str
    score: float  # log-probability
    type: int


@dataclass(frozen=True)
class SentencePieceFile:
    """`charsmap` is the compiled map of characters, empty where text stays as it is. `usual_spaces`: a text gets a
    space at its beginning, several spaces are one, and U+2581 stands for it, before its word.
    """

    model_type: int
    pieces: tuple[ModelPiece, ...]
    charsmap: bytes
    usual_spaces: bool


def read(content: bytes) -> SentencePieceFile:
    """Raises ValueError for what is no SentencePiece model."""
    pieces: list[ModelPiece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for field, value in _fields(content):
        if field == _PIECE:
            pieces.append(_piece(dict(_fields(_bytes(value)))))
        elif field in (_TRAINER, _NORMALIZER):
            (trainer if field == _TRAINER else normalizer).update(_fields(_bytes(value)))
    if not pieces:
        raise ValueError("has no pieces")
    spaces = all(normalizer.get(field, 1) == 1 for field in (_PREFIX, _SINGLE_SPACES, _VISIBLE_SPACES))
    return SentencePieceFile(
        model_type=_integer(trainer.get(_MODEL_TYPE, UNIGRAM)),
        pieces=tuple(pieces),
        charsmap=_bytes(normalizer.get(_CHARSMAP, b"")),
        usual_spaces=spaces and not trainer.get(_AS_SUFFIX, 0),
    )


def check_charsmap(charsmap: bytes) -> None:
    """Raise ValueError for a map that a library would read past the end of. It is a trie, an array of 32-bit units
    (darts-clone), after its size in bytes, and then the texts that characters become.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if not 0 < size <= len(charsmap) - 4 or size % 4:
        raise ValueError("its map of characters is cut off")
    units = np.frombuffer(charsmap, "<u4", size // 4, offset=4)
    texts = np.frombuffer(charsmap, np.uint8, offset=4 + size)
    is_leaf = units >> 31 == 1
    starts = units[is_leaf] & 0x7FFFFFFF
    if len(texts) == 0 or starts.max(initial=0) >= len(texts) or (texts[starts] & 0xC0 == 0x80).any():
        raise ValueError("its map of characters points outside its texts")
    offsets = (units >> 10) << ((units >> 6) & 8)
    children = (np.arange(len(units)) ^ offsets)[~is_leaf] | 0xFF  # the last one; its byte chooses among them
    if children.max(initial=0) >= len(units):
        raise ValueError("its map of characters points outside itself")
    texts.tobytes().decode()


def _piece(values: dict[int, int | bytes]) -> ModelPiece:
    if len(score_bytes := _bytes(values.get(_SCORE, bytes(4)))) != 4:
        raise ValueError("has a piece whose score is no number")
    (score,) = struct.unpack("<f", score_bytes)
    return ModelPiece(_bytes(values.get(_TEXT, b"")).decode(), score, _integer(values.get(_TYPE, NORMAL)))


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message: an integer, or the bytes of text, numbers and messages."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        field, how = tag >> 3, tag & 7
        if how == _VARINT:
            value, at = _varint(message, at)
            yield field, value
            continue
        if how == _BYTES:
            size, at = _varint(message, at)
        elif how in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if how == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"byte {at - 1} begins no field")
        if at + size > len(message):
            raise ValueError("ends within a field")
        yield field, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """(the integer that begins at byte `at`, seven bits to a byte; the byte after it)."""
    value = 0
    for number in range(10):
        if at + number >= len(message):
            raise ValueError("ends within a number")
        byte = message[at + number]
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at + number + 1
    raise ValueError(f"byte {at} begins no number")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise ValueError("has a number where bytes belong")


def _integer(value: int | bytes) -> int:
    if isinstance(value, int):
        return value
    raise ValueError("has bytes where a number belongs")
