"""Published tokenizers as tokenizer folders, each with a `tokenizer.json` for the library of that name, or with the
model file of SentencePiece.

Files of a known sha256 are named as the published ones; others are taken too, with one line that says so. Everything is
read as JSON, text or numbers, never as code or pickle, and refused in one line when it is not what it should be.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import naming
from gpt1_ds.data.tokenizers import (
    gpt2_bpe,
    hf_folder,
    json_file,
    roles,
    sentencepiece_model,
    t5_unigram,
    wordpiece,
)
from gpt1_ds.data.tokenizers.base import MASK_SYMBOLS, SENTENCEPIECE_MODEL, TOKENIZER_JSON, SpecialIds, Tokenizer
from gpt1_ds.data.tokenizers.registry import publish_tokenizer
from gpt1_ds.data.tokenizers.tokenizer_json import TokenizerJson

PUBLISHED = {  # sha256 of the files that Google and OpenAI published
    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783": "GPT-2's encoder.json",
    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5": "GPT-2's vocab.bpe",
    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3": "BERT's uncased vocab.txt",
    "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86": "T5's spiece.model",
}
MAX_SENTINELS = 10_000
MAX_BYTES = 32 << 20  # of a file; the published ones have at most 1.4 MB


def import_gpt2(
    vocab: Path | str, merges: Path | str, out: Path | str, task_symbols: bool = False, masks: bool = False
) -> tuple[Tokenizer, list[str]]:
    """Publishes encoder.json and vocab.bpe, or RoBERTa's vocab.json and merges.txt, as the tokenizer folder `out`.

    The ids stay the published ones. GPT-2's vocabulary has no symbol but `<|endoftext|>`: `task_symbols` appends
    `<start>`, `<delimiter>` and `<extract>`, which GPT-1's way of fine-tuning needs, and `masks` those of masked
    models. They are appended only when asked for, because a model of the published size has no rows for them. Returns
    what to tell about the files, too. Raises DataError for files that are missing or damaged.
    """
    paths = Path(vocab), Path(merges)
    contents = [_read(path) for path in paths]
    vocabulary = gpt2_bpe.read_vocabulary(paths[0], contents[0])
    pairs = gpt2_bpe.read_merges(paths[1], contents[1], vocabulary)
    special_ids = gpt2_bpe.byte_level_ids(vocabulary)
    if special_ids.eod is None:
        raise DataError(f"{paths[0]}: has neither {gpt2_bpe.ENDOFTEXT} nor RoBERTa's symbols; download it again")
    wanted = (*(gpt2_bpe.TASK_SYMBOLS if task_symbols else ()), *(MASK_SYMBOLS if masks else ()))
    special_ids = _appended(special_ids, wanted, len(vocabulary))
    size = max(len(vocabulary), *(number + 1 for number in special_ids.present().values()))
    tokenizer = _publish(Path(out), size, special_ids, gpt2_bpe.contents(vocabulary, pairs, special_ids))
    return tokenizer, _provenance(paths, contents)


def import_wordpiece(vocab: Path | str, out: Path | str, cased: bool = False) -> tuple[Tokenizer, list[str]]:
    """Publishes BERT's vocab.txt as the tokenizer folder `out`; `cased`: text keeps its capitals and accents.

    Returns what to tell about the file, too. Raises DataError for one that is missing or damaged.
    """
    path, content = Path(vocab), _read(Path(vocab))
    vocabulary = wordpiece.read_vocabulary(path, content)
    special_ids = wordpiece.wordpiece_ids(vocabulary)
    tokenizer = _publish(Path(out), len(vocabulary), special_ids, wordpiece.contents(vocabulary, not cased))
    return tokenizer, _provenance([path], [content])


def import_sentencepiece(
    file: Path | str, out: Path | str, sentinels: int | None = None, role_words: Sequence[str] = ()
) -> tuple[Tokenizer, list[str]]:
    """Publishes a SentencePiece model as the tokenizer folder `out`, with `sentinels` after its pieces (None: T5's 100
    for one like T5's, else none). `role_words` name symbols, like `mask=<mask>`.

    Returns what to tell about the file, too. Raises DataError for one that is missing or damaged.
    """
    if sentinels is not None and not 0 <= sentinels <= MAX_SENTINELS:
        raise DataError(f"--sentinels {sentinels} must be from 0 to {MAX_SENTINELS}; T5 has {t5_unigram.SENTINELS}")
    path, content, wanted = Path(file), _read(Path(file)), roles.asked(role_words)
    if not wanted and (model := t5_unigram.model_of_file(path, content)) is not None:
        count = t5_unigram.SENTINELS if sentinels is None else sentinels
        size, special_ids = len(model.pieces) + count, model.special_ids(count)
        tokenizer = _publish(Path(out), size, special_ids, t5_unigram.contents(model, count))
        return tokenizer, _provenance([path], [content])
    size, special_ids, line = sentencepiece_model.learn_roles(path, content, wanted, sentinels or 0)
    files = {sentencepiece_model.FILE: content}
    return publish_tokenizer(Path(out), SENTENCEPIECE_MODEL, size, special_ids, files), [line]


def import_hf(folder: Path | str, out: Path | str, role_words: Sequence[str] = ()) -> tuple[Tokenizer, list[str]]:
    """Publishes the tokenizer of a Hugging Face folder, or of a repository on the hub, as transformers reads it.
    `role_words` name symbols, like `mask=<mask>`.

    Returns what to tell about it, too. Raises DataError for a folder that holds none, or one that transformers or the
    library cannot run.
    """
    name, folder = str(folder), Path(folder)
    if not folder.is_dir():
        if folder.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
            raise DataError(
                f"--hf={name}: not a folder; name the one that holds {json_file.FILE}, or a repository on the hub"
            )
        folder = hf_folder.download(name)
    wanted = roles.asked(role_words)
    contents, said = hf_folder.convert(folder)
    size, special_ids, line = json_file.learn_roles(folder / json_file.FILE, contents, wanted, said)
    tokenizer = _publish(Path(out), size, special_ids, contents)
    return tokenizer, [line, *tokenizer.remarks]


def _publish(out: Path, size: int, special_ids: SpecialIds, contents: Mapping[str, Any]) -> TokenizerJson:
    files = {json_file.FILE: json.dumps(contents, ensure_ascii=False).encode()}
    tokenizer = publish_tokenizer(out, TOKENIZER_JSON, size, special_ids, files)
    assert isinstance(tokenizer, TokenizerJson), tokenizer.kind
    return tokenizer


def _appended(special_ids: SpecialIds, roles: tuple[str, ...], pieces: int) -> SpecialIds:
    """Returns `roles` that are not there yet, after the last id of the vocabulary."""
    missing = [role for role in roles if role not in special_ids.present()]
    return replace(special_ids, **{role: pieces + number for number, role in enumerate(missing)})


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise DataError(f"{path}: no such file; name the one that was published with the model")
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path}: {path.stat().st_size} bytes is too large for a vocabulary; download it again")
    with naming(path):
        return path.read_bytes()


def _provenance(paths: tuple[Path, ...] | list[Path], contents: list[bytes]) -> list[str]:
    """Returns one line for the files that are published ones, one for those that are not."""
    known = [PUBLISHED.get(hashlib.sha256(content).hexdigest()) for content in contents]
    lines = [f"known by sha256: {', '.join(filter(None, known))}"] if any(known) else []
    if strange := [path.name for path, name in zip(paths, known, strict=True) if name is None]:
        lines.append(f"not among the published files that are known, taken as they are: {', '.join(strange)}")
    return lines
