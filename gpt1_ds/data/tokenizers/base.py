"""What every tokenizer can do, the folder that one lives in, and what two kinds have in common: ids that are pieces of
text, and texts that are read whole.

A tokenizer folder holds the model files and `gpt1_tokenizer.json`: their kind, vocabulary size, special ids and sha256.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.common.files import MOST_JSON, did_you_mean, naming, parse_json, write_atomic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


METADATA = "gpt1_tokenizer.json"
FORMAT = 2  # 1: the two kinds and five roles of the first versions; written wherever it can say what there is
SENTENCEPIECE = "sentencepiece-bpe"
UNIGRAM = "sentencepiece-unigram"
OPENAI = "openai-bpe"
GPT2 = "gpt2-bpe"
WORDPIECE = "wordpiece"
T5 = "t5-unigram"
TOKENIZER_JSON = "tokenizer-json"  # of any kind, by the library tokenizers
SENTENCEPIECE_MODEL = "sentencepiece"  # of any kind, by the library sentencepiece
FIRST_ROLES = ("unknown", "eod", "start", "delimiter", "extract")  # of format 1, which has all of them
ROLES = {  # that each kind has; it may have more
    SENTENCEPIECE: FIRST_ROLES,
    UNIGRAM: FIRST_ROLES,
    OPENAI: FIRST_ROLES,
    GPT2: ("eod",),
    WORDPIECE: ("unknown", "eod", "cls", "separator", "pad", "mask"),
    T5: ("unknown", "eod", "pad"),
    TOKENIZER_JSON: ("eod",),
    SENTENCEPIECE_MODEL: ("eod",),
}
MASK_SYMBOLS = {"cls": "<cls>", "separator": "<sep>", "pad": "<pad>", "mask": "<mask>"}  # of `--masks`
SPACE = "\u2581"  # stands for a space in pieces of SentencePiece and of T5
MAX_METADATA_BYTES = 1 << 20
MAX_WORDS = 1 << 18  # about 60 MiB; a full cache is emptied, which costs one encoding per word
MAX_LETTERS = 64  # longer words hardly come back
_MAKE_ONE = "make one with `gpt1-ds tokenizer train`"


_NAMED = "name one of an imported tokenizer's by --role"
_TASK_WAY_OUT = f"train one (not wordpiece), import GPT-2's with --task-symbols, or {_NAMED}"
_MASK_WAY_OUT = f"train one with --masks, import WordPiece, or {_NAMED}"
_WAYS_OUT = {
    "unknown": "byte-level ones know every text; use WordPiece or SentencePiece here",
    **dict.fromkeys(("start", "delimiter", "extract"), _TASK_WAY_OUT),
    **dict.fromkeys(("cls", "separator", "pad", "mask"), _MASK_WAY_OUT),
}


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the roles that a tokenizer has, None for the others. Two roles may have one id.

    Text never encodes to them, except to `unknown` in vocabularies that do not cover every character.
    """

    unknown: int | None = None
    eod: int | None = None  # end of a document
    start: int | None = None  # the three of GPT-1's fine-tuning inputs: start, delimiter, extract
    delimiter: int | None = None
    extract: int | None = None
    cls: int | None = None  # the first token of an encoder's input
    separator: int | None = None  # ends each text of it
    pad: int | None = None
    mask: int | None = None
    sentinels: int | None = None  # no id, but how many: the last ones of the vocabulary, sentinel 0 is the very last

    def present(self) -> dict[str, int]:
        """Returns role -> id of the roles that there are, sentinels apart."""
        return {role: number for role, number in self.values().items() if role != "sentinels"}

    def values(self) -> dict[str, int]:
        """Returns what `gpt1_tokenizer.json` says."""
        return {role: number for role, number in vars(self).items() if number is not None}

    def require(self, role: str, needed_by: str) -> int:
        """Returns the id of `role`. Raises ConfigError, naming `needed_by` (a key and its value) and the way out."""
        found: int | None = getattr(self, role)
        if found is None:
            raise ConfigError(*self.missing((role,), needed_by))
        return found

    def missing(self, roles: Iterable[str], needed_by: str) -> Iterator[str]:
        """Yields a line for each of these roles that the tokenizer does not have."""
        for role in roles:
            if getattr(self, role) is None:
                symbol = {"separator": "sep"}.get(role, role)
                yield f"{needed_by} needs a token <{symbol}>: the tokenizer has none; {_WAYS_OUT[role]}"

    def missing_sentinels(self, needed: int) -> Iterator[str]:
        """Yields a line where the tokenizer has fewer sentinels than span corruption needs."""
        if (self.sentinels or 0) < needed:
            yield (
                f"objective.kind=spans needs objective.sentinels={needed} ids <extra_id_k>: the tokenizer has "
                f"{self.sentinels or 0}; train one with --sentinels {needed}"
            )


@dataclass(frozen=True)
class Metadata:
    """The contents of `gpt1_tokenizer.json`. `files` maps a file's name to its sha256."""

    kind: str
    vocab_size: int
    special_ids: SpecialIds
    files: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """Hex sha256 of everything that determines the ids. Roles that are not there do not count."""
        parts = [self.kind, self.vocab_size, self.special_ids.values(), sorted(self.files.items())]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        roles = self.special_ids.values()
        first = self.kind in (SENTENCEPIECE, OPENAI) and tuple(roles) == FIRST_ROLES
        values = {"kind": self.kind, "vocab_size": self.vocab_size, "special_ids": roles, "files": dict(self.files)}
        return {"format": 1 if first else FORMAT, **values}


class Tokenizer(ABC):
    """Text to ids and back."""

    whole_documents = False  # whether a document must not be cut before it is encoded
    gives_text_back = True  # whether decode(encode(text)) == text for every text

    def __init__(self, metadata: Metadata) -> None:
        self.kind = metadata.kind
        self.vocab_size = metadata.vocab_size
        self.fingerprint = metadata.fingerprint
        self.special_ids = metadata.special_ids
        self.eod_id = metadata.special_ids.require("eod", "a dataset")  # every kind has it

    @property
    def meaning(self) -> str:
        """A text that two tokenizers share only if they give every text the same ids, with the same roles. It is the
        fingerprint, or where folders may hold the same tokenizer in different files a hash of what is in them.
        """
        return self.fingerprint

    @property
    def pad_id(self) -> int:
        """Returns the id that fills up rows and begins a decoder's input; tokenizers without one take the end of a
        document.
        """
        pad = self.special_ids.pad
        return self.eod_id if pad is None else pad

    @property
    def first_sentinel(self) -> int:
        """The smallest id of a sentinel; the vocabulary's size where there is none."""
        return self.vocab_size - (self.special_ids.sentinels or 0)

    @property
    def unknown_id(self) -> int:
        return self.special_ids.require("unknown", "this use")

    @property
    def start_id(self) -> int:
        return self.special_ids.require("start", "GPT-1's layout of texts")

    @property
    def delimiter_id(self) -> int:
        return self.special_ids.require("delimiter", "GPT-1's layout of texts")

    @property
    def extract_id(self) -> int:
        return self.special_ids.require("extract", "GPT-1's layout of texts")

    def encode(self, text: str) -> NDArray[np.int32]:
        """Returns int32 [tokens]: the ids of a whole text, without any control symbol."""
        return self.encode_part(text, "")

    def __call__(self, text: str) -> list[int]:
        """Returns the ids of a whole text as a list, as people look at them; `decode` is the way back."""
        return self.encode(text).tolist()  # type: ignore[no-any-return]

    @abstractmethod
    def encode_part(self, text: str, previous: str, continues: bool = False) -> NDArray[np.int32]:
        """Returns int32 [tokens]: the ids of a piece of a longer text. Pieces joined give the ids of the whole.

        A text may be cut after a line end that no white space follows, and before a space that follows no white space.
        `previous` is the character before the piece, empty at the beginning of the text; `continues` says whether the
        text has more after the piece.
        """

    @abstractmethod
    def encode_with_places(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns int32 [tokens], int64 [tokens, 2]: the ids of `encode`, and the characters [first, stop) of `text`
        that each one stands for. A place may hold blanks, and those of two ids the same characters.
        """

    def encode_with_offsets(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the same with places that neither begin nor end with a blank; of blanks alone they are empty. So the
        text from one token to another is `text[offsets[first, 0] : offsets[last, 1]]`, as its author wrote it.
        """
        import numpy as np

        ids, places = self.encode_with_places(text)
        shown = np.flatnonzero([not letter.isspace() for letter in text])
        first, stop = places.T
        after, until = np.searchsorted(shown, first), np.searchsorted(shown, stop)  # those shown before each border
        here = until > after
        offsets = places.copy()
        offsets[here] = np.stack([shown[after[here]], shown[until[here] - 1] + 1], 1)
        offsets[~here, 1] = offsets[~here, 0]
        return ids, offsets

    @abstractmethod
    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Returns the text that `ids` stand for; control symbols stand for none. Raises ValueError for an id out of
        range.
        """

    def checked(self, ids: Sequence[int] | NDArray[np.integer]) -> list[int]:
        """Returns `ids` as a list. Raises ValueError for an id outside the vocabulary."""
        numbers = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        if numbers and not 0 <= min(numbers) <= max(numbers) < self.vocab_size:
            raise ValueError(f"an id is not in the vocabulary of {self.vocab_size}: {min(numbers)} to {max(numbers)}")
        return numbers

    @abstractmethod
    def token_bytes(self) -> NDArray[np.int32]:
        """Returns int32 [vocab_size]: UTF-8 bytes of text that each id stands for; 0 for control symbols and `unknown`.

        Where decoding is lossy they are those of the decoded text, and their sum only comes near the original's bytes:
        what must be exact counts the original (`dataset.json` has the bytes of each split).
        """

    def begins_word(self) -> NDArray[np.bool_]:
        """Returns bool [vocab_size]: whether a word begins with this id, for what masks whole words. Raises ConfigError
        where an id alone does not tell.
        """
        raise ConfigError(
            f"objective.whole_words=true: ids of the kind {self.kind} do not tell where words begin; leave it out"
        )


def control_ids(tokenizer: Tokenizer) -> list[int]:
    """Returns the ids that no text has."""
    return [number for number in tokenizer.special_ids.present().values() if number != tokenizer.eod_id]


def most_beams(tokenizer: Tokenizer) -> int:
    """Returns how many beams can look for a text: each needs two tokens that can be written."""
    return (tokenizer.vocab_size - len(control_ids(tokenizer))) // 2


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


def published_json(path: Path, content: bytes, most: int = MOST_JSON) -> Any:
    """Returns the value in a file of others, whose JSON may take `most` bytes of memory. Raises DataError."""
    try:
        return parse_json(content, most)
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error!s:.200}); download it again") from None


def published_lines(path: Path, content: bytes) -> list[str]:
    """Returns the lines in a text file of others. Raises DataError."""
    try:
        return content.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; download it again") from None


def ids_as_bytes(ids: Iterable[int]) -> bytes:
    return array("i", ids).tobytes()


def read_metadata(folder: Path) -> Metadata:
    """Returns `gpt1_tokenizer.json` of `folder`, without looking at the model files. Raises DataError as
    `load_tokenizer`.
    """
    path = folder / METADATA
    if not path.is_file():
        meant = did_you_mean(folder, lambda other: (other / METADATA).is_file())
        raise DataError(f"{folder}: not a tokenizer folder ({METADATA} is missing); {meant or _MAKE_ONE}")
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
    if metadata.kind not in ROLES:
        raise DataError(f"{path}: kind {metadata.kind!r:.40} is not one of {', '.join(ROLES)}; update gpt1-ds")
    roles = metadata.special_ids.values()
    if missing := [role for role in ROLES[metadata.kind] if role not in roles]:
        raise DataError(f"{path}: damaged (no id for {', '.join(missing)}); copy the folder again")
    if not all(number < metadata.vocab_size for number in roles.values()):
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


def read_files(folder: Path) -> dict[str, bytes]:
    """Returns the contents of the files that a tokenizer folder names, and of nothing else that lies there."""
    return {name: (folder / name).read_bytes() for name in (METADATA, *read_metadata(folder).files)}


def write_tokenizer(files: Mapping[str, bytes], target: Path) -> None:
    """Writes what `read_files` returns; access rights are those of new files."""
    target.mkdir(exist_ok=True)
    for name, content in files.items():
        write_atomic(target / name, content)


def copy_tokenizer(source: Path, target: Path) -> None:
    write_tokenizer(read_files(source), target)


class PieceTokenizer(Tokenizer):
    """`pieces` are the UTF-8 bytes of each id's text, empty for control symbols. A piece holds the space before it."""

    pieces: list[bytes]

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Returns bytes that are not UTF-8, which only a model can produce, become U+FFFD."""
        return b"".join(map(self.pieces.__getitem__, self.checked(ids))).decode("utf-8", errors="replace")

    def token_bytes(self) -> NDArray[np.int32]:
        import numpy as np

        return np.array([len(piece) for piece in self.pieces], dtype=np.int32)

    def begins_word(self) -> NDArray[np.bool_]:
        """White space and signs begin a word, too; control symbols do."""
        import numpy as np

        return np.array([not (piece[:1].isalnum() or piece[:1] >= b"\x80") for piece in self.pieces])


MOST_LETTERS = 16 << 20  # of a document


class WholeDocumentTokenizer(PieceTokenizer):
    whole_documents = True

    @abstractmethod
    def encode(self, text: str) -> NDArray[np.int32]:
        """Returns int32 [tokens]."""

    def encode_part(self, text: str, previous: str, continues: bool = False) -> NDArray[np.int32]:
        """Returns the ids that `text` gets after `previous`."""
        if not previous:
            return self.encode(text)
        ids, places = self.encode_with_places(previous + text)
        return ids[places[:, 1] > len(previous)]

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[NDArray[np.int32], list[int]]:
        """Returns the ids of the text that the sentences make together, and the token that each sentence with tokens
        begins at.
        """
        ids, places = self.encode_with_places("".join(sentences))
        import numpy as np

        borders = np.cumsum([0, *map(len, sentences)])
        starts = np.searchsorted(places[:, 1], borders[:-1], side="right")
        return ids, np.unique(starts[starts < len(ids)]).tolist()
