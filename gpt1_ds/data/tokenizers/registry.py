"""Tokenizer folders of every kind, loaded and published. A kind brings its libraries when a folder of it is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import is_taken, naming, published_folder, sha256_file, write_json
from gpt1_ds.data.tokenizers import base
from gpt1_ds.data.tokenizers.base import METADATA, Metadata, SpecialIds, Tokenizer, read_metadata

KINDS = {  # kind -> its module beside this one, and the class or function there that opens a folder
    base.SENTENCEPIECE: ("sentencepiece_bpe", "SentencePieceBpe"),
    base.UNIGRAM: ("sentencepiece_bpe", "SentencePieceUnigram"),
    base.OPENAI: ("openai_bpe", "OpenAIBpe"),
    base.GPT2: ("gpt2_bpe", "load"),
    base.WORDPIECE: ("wordpiece", "load"),
    base.T5: ("t5_unigram", "load"),
    base.TOKENIZER_JSON: ("tokenizer_json", "load"),
    base.SENTENCEPIECE_MODEL: ("sentencepiece_model", "SentencePieceModel"),
}


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """Returns the tokenizer that lives in `folder`, its files checked against their hashes.

    Raises DataError when there is none, when a file was changed, or when a newer version of this program made it.
    """
    folder = Path(folder)
    metadata = read_metadata(folder)
    for name, expected in metadata.files.items():
        if not (folder / name).is_file():
            raise DataError(f"{folder / name}: this file of the tokenizer is missing; copy the folder again")
        if sha256_file(folder / name) != expected:
            raise DataError(f"{folder / name}: differs from the sha256 in {METADATA}; copy the folder again")
    module, name = KINDS[metadata.kind]
    kind: Callable[[Path, Metadata], Tokenizer] = getattr(import_module(f"{__package__}.{module}"), name)
    return kind(folder, metadata)


def encode_alike(one: Path, other: Path) -> bool:
    """Returns whether two tokenizer folders give every text the same ids, with the same roles: imports of earlier
    versions hold other files of a published tokenizer than those of today. Raises DataError as `load_tokenizer`.
    """
    return load_tokenizer(one).meaning == load_tokenizer(other).meaning


def check_free(out: Path) -> None:
    """Raises DataError when `out` is there and not an empty folder that a tokenizer can take the place of."""
    if is_taken(out):
        raise DataError(f"{out}: is there already; choose another --out or remove it")


def publish_tokenizer(
    out: Path, kind: str, vocab_size: int, special_ids: SpecialIds, files: Mapping[str, bytes]
) -> Tokenizer:
    """Writes a tokenizer folder in one step and loads it. Raises DataError when `out` is there and not empty."""
    check_free(out)
    with published_folder(out) as folder:
        for name, content in files.items():
            with naming(out / name):
                (folder / name).write_bytes(content)
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        metadata = Metadata(kind, vocab_size, special_ids, digests)
        write_json(folder / METADATA, metadata.as_json())
        load_tokenizer(folder)  # nothing is published that could not be read back
    return load_tokenizer(out)


def import_openai(vocab: Path | str, merges: Path | str, out: Path | str) -> Tokenizer:
    """Publishes the released encoder_bpe_40000.json and vocab_40000.bpe as the tokenizer folder `out`.

    Raises DataError when they are missing or not the 40,478 ids and 40,000 merges of the release.
    """
    from gpt1_ds.data.tokenizers import openai_bpe as bpe

    contents = []
    for path in (Path(vocab), Path(merges)):
        if not path.is_file():
            raise DataError(f"{path}: no such file; download it from github.com/openai/finetune-transformer-lm/model")
        contents.append(path.read_bytes())
    encoder = bpe.read_vocabulary(Path(vocab), contents[0])
    bpe.check_merges(Path(merges), bpe.read_merges(Path(merges), contents[1]), encoder)
    files = dict(zip((bpe.VOCABULARY, bpe.MERGES), contents, strict=True))
    return publish_tokenizer(Path(out), base.OPENAI, bpe.TEXT_IDS + 4, bpe.SPECIAL_IDS, files)
