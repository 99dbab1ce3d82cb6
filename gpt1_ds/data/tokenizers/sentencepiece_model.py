"""Any SentencePiece model, by the library of that name: the same ids for every text, and its own decoding.

Sentinels follow its pieces, as T5's do. Pieces that the model finds in a text, its `user_defined` ones too, have no
role: text would become control symbols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers import roles, sentencepiece_file
from gpt1_ds.data.tokenizers.base import Metadata, SpecialIds, WholeDocumentTokenizer

FILE = "sentencepiece.model"
_SPACE = "\u2581"


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
        return bytes(piece.replace(_SPACE, " ").encode())

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
        if charsmap := sentencepiece_file.read(content).charsmap:
            sentencepiece_file.check_charsmap(charsmap)
        model.LoadFromSerializedProto(content)
        for number in range(model.GetPieceSize()):
            model.IdToPiece(number)
    except (RuntimeError, ValueError) as error:
        line = " ".join(str(error).split())[:100]
        raise DataError(f"{path}: not a SentencePiece model ({line}); download it again") from None
    return model


def learn_roles(path: Path, content: bytes, wanted: Mapping[str, str], sentinels: int) -> tuple[int, SpecialIds, str]:
    """(vocabulary size, roles, a line about them) of a model. Raises DataError as `load`, and for a role whose symbol
    is missing or is a piece of text.
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
