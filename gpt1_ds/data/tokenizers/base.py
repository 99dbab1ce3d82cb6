"""What every tokenizer can do, and the folder that one lives in.

A tokenizer folder holds the model files and `gpt1_tokenizer.json`: their kind, vocabulary size, special ids and sha256.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import naming, parse_json, write_atomic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

METADATA = "gpt1_tokenizer.json"
FORMAT = 1
SENTENCEPIECE = "sentencepiece-bpe"
OPENAI = "openai-bpe"
MAX_METADATA_BYTES = 1 << 20
MAX_WORDS = 1 << 18  # about 60 MiB; a full cache is emptied, which costs one encoding per word
MAX_LETTERS = 64  # longer words hardly come back
_MAKE_ONE = "make one with `gpt1-ds tokenizer train`"


@dataclass(frozen=True)
class SpecialIds:
    """Ids that text never encodes to, except `unknown` in vocabularies that do not cover every character."""

    unknown: int
    eod: int  # end of a document
    start: int  # the three of fine-tuning inputs: start, delimiter, extract
    delimiter: int
    extract: int


@dataclass(frozen=True)
class Metadata:
    """The contents of `gpt1_tokenizer.json`. `files` maps a file's name to its sha256."""

    kind: str
    vocab_size: int
    special_ids: SpecialIds
    files: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """Hex sha256 of everything that determines the ids."""
        parts = [self.kind, self.vocab_size, asdict(self.special_ids), sorted(self.files.items())]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Tokenizer(ABC):
    """Text to ids and back."""

    def __init__(self, metadata: Metadata) -> None:
        self.kind = metadata.kind
        self.vocab_size = metadata.vocab_size
        self.fingerprint = metadata.fingerprint
        self.special_ids = metadata.special_ids
        self.unknown_id = metadata.special_ids.unknown
        self.eod_id = metadata.special_ids.eod
        self.start_id = metadata.special_ids.start
        self.delimiter_id = metadata.special_ids.delimiter
        self.extract_id = metadata.special_ids.extract

    def encode(self, text: str) -> NDArray[np.int32]:
        """int32 [tokens]: the ids of a whole text, without any control symbol."""
        return self.encode_part(text, "")

    @abstractmethod
    def encode_part(self, text: str, previous: str) -> NDArray[np.int32]:
        """int32 [tokens]: the ids of a piece of a longer text that was cut after a line end or before a space.

        `previous` is the character before the piece, empty at the beginning of the text. Pieces joined give the ids of
        the whole.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text that `ids` stand for; control symbols stand for none. Raises ValueError for an id out of range."""

    def checked(self, ids: Sequence[int] | NDArray[np.integer]) -> list[int]:
        """`ids` as a list. Raises ValueError for an id outside the vocabulary."""
        numbers = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        if numbers and not 0 <= min(numbers) <= max(numbers) < self.vocab_size:
            raise ValueError(f"an id is not in the vocabulary of {self.vocab_size}: {min(numbers)} to {max(numbers)}")
        return numbers

    @abstractmethod
    def token_bytes(self) -> NDArray[np.int32]:
        """int32 [vocab_size]: UTF-8 bytes of text that each id stands for; 0 for control symbols and `unknown`."""


class WordCache(dict[str, bytes]):
    """Maps a word to its int32 ids as bytes, calling `encode` for words it does not hold.

    Ids are kept as bytes because joining bytes is the fastest way to put the ids of many words into one array.
    """

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> bytes:
        ids = self._encode(word)
        if len(word) <= MAX_LETTERS:
            if len(self) >= MAX_WORDS:
                self.clear()
            self[word] = ids
        return ids


def ids_as_bytes(ids: Iterable[int]) -> bytes:
    return array("i", ids).tobytes()


def read_metadata(folder: Path) -> Metadata:
    """`gpt1_tokenizer.json` of `folder`, without looking at the model files. Raises DataError as `load_tokenizer`."""
    path = folder / METADATA
    if not path.is_file():
        raise DataError(f"{folder}: not a tokenizer folder ({METADATA} is missing); {_MAKE_ONE}")
    if path.stat().st_size > MAX_METADATA_BYTES:
        raise DataError(f"{path}: {path.stat().st_size} bytes is too large for this file; {_MAKE_ONE}")
    try:
        with naming(path):
            values: dict[str, Any] = parse_json(path.read_bytes())
        if values["format"] > FORMAT:
            raise DataError(f"{path}: format {values['format']!r:.40} is newer than this program; update gpt1-ds")
        metadata = Metadata(
            kind=str(values["kind"]),
            vocab_size=_count(values["vocab_size"]),
            special_ids=SpecialIds(**{name: _count(number) for name, number in values["special_ids"].items()}),
            files={str(name): str(digest) for name, digest in values["files"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged ({type(error).__name__}: {error!s:.200}); copy the folder again") from None
    if metadata.kind not in (SENTENCEPIECE, OPENAI):
        raise DataError(f"{path}: kind {metadata.kind!r:.40} is not {SENTENCEPIECE} or {OPENAI}; update gpt1-ds")
    if not all(number < metadata.vocab_size for number in asdict(metadata.special_ids).values()):
        raise DataError(
            f"{path}: a special id is not in the vocabulary of {metadata.vocab_size}; copy the folder again"
        )
    if any(Path(name).name != name for name in metadata.files):
        raise DataError(f"{path}: names a file outside the folder; copy the folder again")
    return metadata


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError(f"{value!r:.40} is no count or id")
    return value


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the files that a tokenizer folder names, and nothing else that lies there; access rights are not copied."""
    target.mkdir(exist_ok=True)
    for name in (METADATA, *read_metadata(source).files):
        write_atomic(target / name, (source / name).read_bytes())
