"""Any SentencePiece model: what its file says, and a tokenizer by the library of that name, with the same ids for every
text and its own decoding.

The file is a protocol buffer (sentencepiece_model.proto of the library). The library's own reader of it is bound to one
version of protobuf, and its encoder does not show the normalisation; what is needed here is read field by field.

Sentinels follow its pieces, as T5's do. Pieces that the model finds in a text, its `user_defined` ones too, have no
role: text would become control symbols.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers import roles
from gpt1_ds.data.tokenizers.base import SPACE, Metadata, SpecialIds, WholeDocumentTokenizer

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
    """Raises ValueError for a map that a library would read past the end of. It is a trie, an array of 32-bit units
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
    """Yields (number, value) of each field of a message: an integer, or the bytes of text, numbers and messages."""
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
    """Returns (the integer that begins at byte `at`, seven bits to a byte; the byte after it)."""
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


FILE = "sentencepiece.model"


class SentencePieceModel(WholeDocumentTokenizer):
    gives_text_back = False  # it may change characters and spaces

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(metadata)
        self._model = load(folder / FILE, (folder / FILE).read_bytes())
        self._size = self._model.GetPieceSize()
        if self._size + (self.special_ids.sentinels or 0) != self.vocab_size:
            raise DataError(f"{folder / FILE}: has {self._size} pieces, not those of the metadata; copy it again")
        self.pieces = [self._text(number) for number in range(self._size)]
        self.pieces += [b""] * (self.vocab_size - self._size)

    def _text(self, number: int) -> bytes:
        model, piece = self._model, self._model.IdToPiece(number)
        if model.IsControl(number) or model.IsUnknown(number) or model.IsUnused(number):
            return b""
        if model.IsByte(number):
            return bytes([int(piece[3:5], 16)])
        return bytes(piece.replace(SPACE, " ").encode())

    def encode(self, text: str) -> NDArray[np.int32]:
        return np.array(self._model.EncodeAsIds(text), dtype=np.int32)

    def encode_with_places(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        found = self._model.EncodeAsOffsetMapping(text)
        return np.array(found["ids"], dtype=np.int32), np.array(found["offsets"], dtype=np.int64).reshape(-1, 2)

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        kept = [number for number in self.checked(ids) if number < self._size and self.pieces[number]]
        text: str = self._model.DecodeIds(kept)
        return text


def load(path: Path, content: bytes) -> Any:
    """Raises DataError for what is no SentencePiece model."""
    import sentencepiece

    sentencepiece.SetMinLogLevel(3)  # its C++ log would spill on the terminal
    model = sentencepiece.SentencePieceProcessor()
    try:
        if charsmap := read(content).charsmap:
            check_charsmap(charsmap)
        model.LoadFromSerializedProto(content)
        for number in range(model.GetPieceSize()):
            model.IdToPiece(number)
    except (RuntimeError, ValueError) as error:
        line = " ".join(str(error).split())[:100]
        raise DataError(f"{path}: not a SentencePiece model ({line}); download it again") from None
    return model


def learn_roles(path: Path, content: bytes, wanted: Mapping[str, str], sentinels: int) -> tuple[int, SpecialIds, str]:
    """Returns (vocabulary size, roles, a line about them) of a model. Raises DataError as `load`, and for a role whose
    symbol is missing or is a piece of text.
    """
    model = load(path, content)
    size = model.GetPieceSize()
    control = {model.IdToPiece(n): n for n in range(size) if model.IsControl(n) or model.IsUnknown(n)}
    pieces = {model.IdToPiece(n) for n in range(size)}
    for role, symbol in wanted.items():
        if symbol in pieces and symbol not in control:
            raise DataError(
                f"{path}: {symbol!r} is a piece of text, not a control symbol for --role {role}; take the model's "
                "tokenizer.json by --hf, if it has one"
            )
    own = {"eod": model.eos_id(), "start": model.bos_id(), "pad": model.pad_id(), "unknown": model.unk_id()}
    files = {role: model.IdToPiece(number) for role, number in own.items() if number >= 0}
    found = roles.special_ids(path, control.get, wanted, files, size)
    special_ids = SpecialIds(**found.present(), sentinels=sentinels or None)
    return size + sentinels, special_ids, roles.shown(path, special_ids, model.IdToPiece)
