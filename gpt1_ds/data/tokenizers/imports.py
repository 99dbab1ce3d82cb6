"""Published tokenizers as tokenizer folders: of GPT-2, RoBERTa, BERT and T5 by code of this program, any other one by
the library of its format.

Files of a known sha256 are named as the published ones; others are taken too, with one line that says so. Everything is
read as JSON, text or numbers, never as code or pickle, and refused in one line when it is not what it should be.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import naming, parse_json
from gpt1_ds.data.tokenizers import gpt2_bpe, hub, roles, sentencepiece_model, t5_unigram, tokenizer_json, wordpiece
from gpt1_ds.data.tokenizers.base import (
    GPT2,
    SENTENCEPIECE_MODEL,
    T5,
    TOKENIZER_JSON,
    WORDPIECE,
    SpecialIds,
    Tokenizer,
)
from gpt1_ds.data.tokenizers.registry import publish_tokenizer

PUBLISHED = {  # sha256 of the files that Google and OpenAI published
    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783": "GPT-2's encoder.json",
    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5": "GPT-2's vocab.bpe",
    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3": "BERT's uncased vocab.txt",
    "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86": "T5's spiece.model",
}
MAX_SENTINELS = 10_000
MAX_BYTES = 32 << 20  # of a file; the published ones have at most 1.4 MB
_NOT_T5 = f"its unigram model is not like T5's; import its {t5_unigram.PUBLISHED} if it has one"
CONFIG, WHOLE = "tokenizer_config.json", "tokenizer.json"
_KINDS = "GPT-2's or RoBERTa's byte-level BPE, BERT's WordPiece, or T5's unigram model"
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
_SPACES = {"type": "Metaspace", "replacement": t5_unigram.SPACE, "prepend_scheme": "always", "split": True}
_T5 = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, _SPACES]}


def import_gpt2(
    vocab: Path | str, merges: Path | str, out: Path | str, task_symbols: bool = False, masks: bool = False
) -> tuple[Tokenizer, list[str]]:
    """Publish encoder.json and vocab.bpe, or RoBERTa's vocab.json and merges.txt, as the tokenizer folder `out`.

    The ids stay the published ones. GPT-2's vocabulary has no symbol but `<|endoftext|>`: `task_symbols` appends
    `<start>`, `<delimiter>` and `<extract>`, which GPT-1's way of fine-tuning needs, and `masks` those of masked
    models. They are appended only when asked for, because a model of the published size has no rows for them. Returns
    what to tell about the files, too. Raises DataError for files that are missing or damaged.
    """
    paths = Path(vocab), Path(merges)
    contents = [_read(path) for path in paths]
    vocabulary = gpt2_bpe.read_vocabulary(paths[0], contents[0])
    gpt2_bpe.read_merges(paths[1], contents[1], vocabulary)
    special_ids = gpt2_bpe.special_ids(vocabulary)
    if special_ids.eod is None:
        raise DataError(f"{paths[0]}: has neither {gpt2_bpe.ENDOFTEXT} nor RoBERTa's symbols; download it again")
    wanted = (*(gpt2_bpe.TASK_SYMBOLS if task_symbols else ()), *(gpt2_bpe.MASK_SYMBOLS if masks else ()))
    tokenizer = _publish_gpt2(Path(out), contents, len(vocabulary), _appended(special_ids, wanted, len(vocabulary)))
    return tokenizer, _provenance(paths, contents)


def import_wordpiece(vocab: Path | str, out: Path | str, cased: bool = False) -> tuple[Tokenizer, list[str]]:
    """Publish BERT's vocab.txt as the tokenizer folder `out`; `cased`: text keeps its capitals and accents.

    Returns what to tell about the file, too. Raises DataError for one that is missing or damaged.
    """
    path, content = Path(vocab), _read(Path(vocab))
    return _publish_wordpiece(Path(out), path, content, cased), _provenance([path], [content])


def import_sentencepiece(
    file: Path | str, out: Path | str, sentinels: int | None = None, role_words: Sequence[str] = ()
) -> tuple[Tokenizer, list[str]]:
    """Publish a SentencePiece model as the tokenizer folder `out`, with `sentinels` after its pieces (None: T5's 100
    for one like T5's, else none). `role_words` name symbols, like `mask=<mask>`.

    Returns what to tell about the file, too. Raises DataError for one that is missing or damaged.
    """
    if sentinels is not None and not 0 <= sentinels <= MAX_SENTINELS:
        raise DataError(f"--sentinels {sentinels} must be from 0 to {MAX_SENTINELS}; T5 has {t5_unigram.SENTINELS}")
    path, content, wanted = Path(file), _read(Path(file)), roles.asked(role_words)
    if not wanted and (model := t5_unigram.model_of_file(path, content)) is not None:
        tokenizer = _publish_t5(Path(out), model, t5_unigram.SENTINELS if sentinels is None else sentinels)
        return tokenizer, _provenance([path], [content])
    size, special_ids, line = sentencepiece_model.learn_roles(path, content, wanted, sentinels or 0)
    files = {sentencepiece_model.FILE: content}
    return publish_tokenizer(Path(out), SENTENCEPIECE_MODEL, size, special_ids, files), [line]


def import_hf(folder: Path | str, out: Path | str, role_words: Sequence[str] = ()) -> tuple[Tokenizer, list[str]]:
    """Publish what a Hugging Face folder holds, or a repository on the hub: spiece.model, else tokenizer.json, else
    vocab.json and merges.txt, else vocab.txt. `role_words` name symbols of a tokenizer.json, like `mask=<mask>`.

    Returns what to tell about it, too. Raises DataError for a folder without one of these kinds.
    """
    name, folder = str(folder), Path(folder)
    if not folder.is_dir():
        if folder.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
            raise DataError(f"--hf={name}: not a folder; name the one that holds {WHOLE}, or a repository on the hub")
        folder = hub.download(name)
    if (wanted := roles.asked(role_words)) and (folder / WHOLE).exists():
        return _publish_json(folder / WHOLE, Path(out), wanted)
    if wanted:
        raise DataError(f"--role {role_words[0]}: {folder} has no {WHOLE}; leave it out")
    if (folder / t5_unigram.PUBLISHED).exists():
        config = _json(folder / CONFIG) if (folder / CONFIG).exists() else {}
        sentinels = config.get("extra_ids")  # None: as many as a model like this has
        if sentinels is not None and type(sentinels) is not int:
            raise DataError(f"{folder / CONFIG}: extra_ids is {sentinels!r:.40}; it must be a number")
        return import_sentencepiece(folder / t5_unigram.PUBLISHED, out, sentinels)
    if (folder / WHOLE).exists():
        try:
            return _import_whole(folder / WHOLE, Path(out)), [f"from {WHOLE}"]
        except OfAnotherKindError:
            return _publish_json(folder / WHOLE, Path(out), {})
    vocabulary, merges = folder / gpt2_bpe.VOCABULARY, folder / gpt2_bpe.MERGES
    if vocabulary.exists() and merges.exists():
        return import_gpt2(vocabulary, merges, out)
    if (folder / wordpiece.VOCABULARY).exists():
        config = _json(folder / CONFIG) if (folder / CONFIG).exists() else {}
        lower = config.get(wordpiece.LOWER_CASE, True)  # BERT's default
        if not isinstance(lower, bool):
            raise DataError(f"{folder / CONFIG}: {wordpiece.LOWER_CASE} is {lower!r:.40}; it must be true or false")
        return import_wordpiece(folder / wordpiece.VOCABULARY, out, cased=not lower)
    raise DataError(
        f"--hf={folder}: holds none of {t5_unigram.PUBLISHED}, {WHOLE}, vocab.json with merges.txt, vocab.txt; it must "
        f"be {_KINDS}"
    )


class OfAnotherKindError(DataError):
    """A tokenizer.json that is none of GPT-2, RoBERTa, BERT or T5."""


def _publish_json(path: Path, out: Path, wanted: Mapping[str, str]) -> tuple[Tokenizer, list[str]]:
    """As it is, by the library."""
    size, special_ids, line = tokenizer_json.learn_roles(path, wanted)
    files = {tokenizer_json.FILE: path.read_bytes()}
    return publish_tokenizer(out, TOKENIZER_JSON, size, special_ids, files), [line]


def _import_whole(path: Path, out: Path) -> Tokenizer:
    """From `tokenizer.json`, whose every part must be what the kind has."""
    whole = _json(path)
    model, added = whole.get("model"), _added(path, whole)
    normalizer, cutter = whole.get("normalizer"), whole.get("pre_tokenizer")
    if isinstance(model, dict) and model.get("type") == "Unigram":
        return _whole_t5(path, whole, out)
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        raise OfAnotherKindError(f"{path}: its model has no vocabulary of pieces; it must be {_KINDS}")
    plain = not any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
    plain = plain and not any(model.get(key) for key in ("byte_fallback", "fuse_unk", "ignore_merges"))
    if model.get("type", "BPE") == "BPE" and plain and normalizer is None and _has(cutter, _BYTE_LEVEL):
        return _whole_gpt2(path, model, added, out)
    usual = model.get("continuing_subword_prefix", "##") == "##" and model.get("max_input_chars_per_word", 100) == 100
    if usual and _is_bert(normalizer) and _has(cutter, {"type": "BertPreTokenizer"}):
        vocabulary = _numbered(path, model["vocab"])
        content = "".join(f"{piece}\n" for piece in vocabulary).encode()
        return _publish_wordpiece(out, path, content, cased=not whole["normalizer"].get("lowercase"))
    raise OfAnotherKindError(f"{path}: its normalizer, pre_tokenizer or model is not that of {_KINDS}")


def _whole_gpt2(path: Path, model: dict[str, Any], added: dict[str, int], out: Path) -> Tokenizer:
    """The control symbols may lie in the vocabulary, or follow it."""
    vocabulary = _numbered(path, dict(model["vocab"]) | added)
    merges = model.get("merges")
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in merges] if isinstance(merges, list) else []
    if not all(isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, str) for x in pair) for pair in pairs):
        raise DataError(f"{path}: its merges are not pairs of pieces; download it again")
    text = "".join(f"{first} {second}\n" for first, second in pairs)
    contents = [
        json.dumps(vocabulary, ensure_ascii=False).encode(errors="surrogatepass"),
        f"#version: 0.2\n{text}".encode(errors="surrogatepass"),
    ]
    vocabulary = gpt2_bpe.read_vocabulary(path, contents[0])
    gpt2_bpe.read_merges(path, contents[1], vocabulary)
    special_ids = gpt2_bpe.special_ids(vocabulary)
    if special_ids.eod is None:
        raise OfAnotherKindError(f"{path}: has neither {gpt2_bpe.ENDOFTEXT} nor RoBERTa's symbols")
    return _publish_gpt2(out, contents, len(vocabulary), special_ids)


def _whole_t5(path: Path, whole: dict[str, Any], out: Path) -> Tokenizer:
    """The sentinels lie at the end of the pieces, or follow them."""
    model, normalizer = whole["model"], whole.get("normalizer") or {"type": "Precompiled", "precompiled_charsmap": ""}
    if (
        not isinstance(model.get("vocab"), list)
        or not _has(whole.get("pre_tokenizer"), _T5)
        or not _has(normalizer, {"type": "Precompiled"})
        or model.get("byte_fallback")
    ):
        raise OfAnotherKindError(f"{path}: {_NOT_T5}")
    try:
        pieces = [(piece, float(score)) for piece, score in model["vocab"]]
        charsmap = base64.b64decode(normalizer["precompiled_charsmap"], validate=True)
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: its pieces or its map of characters are damaged; download it again") from None
    names = {number: symbol for symbol, number in _added(path, whole).items()}
    names |= {number: piece for number, (piece, _) in enumerate(pieces)}
    sentinels, last = 0, len(names) - 1
    while names.get(last - sentinels) == f"<extra_id_{sentinels}>":
        sentinels += 1
    found = t5_unigram.checked(path, tuple(pieces[: len(names) - sentinels]), charsmap)
    if len(found.pieces) + sentinels != len(names) or model.get("unk_id") != found.special_ids(0).unknown:
        raise OfAnotherKindError(f"{path}: {_NOT_T5}")
    return _publish_t5(out, found, sentinels)


def _publish_t5(out: Path, model: t5_unigram.Model, sentinels: int) -> Tokenizer:
    files = {t5_unigram.MODEL: model.as_bytes()}
    return publish_tokenizer(out, T5, len(model.pieces) + sentinels, model.special_ids(sentinels), files)


def _publish_gpt2(out: Path, contents: list[bytes], pieces: int, special_ids: SpecialIds) -> Tokenizer:
    size = max(pieces, *(number + 1 for number in special_ids.present().values()))
    files = dict(zip((gpt2_bpe.VOCABULARY, gpt2_bpe.MERGES), contents, strict=True))
    return publish_tokenizer(out, GPT2, size, special_ids, files)


def _publish_wordpiece(out: Path, path: Path, content: bytes, cased: bool) -> Tokenizer:
    vocabulary = wordpiece.read_vocabulary(path, content)
    files = {wordpiece.VOCABULARY: content, wordpiece.SETTINGS: wordpiece.settings(lower_case=not cased)}
    return publish_tokenizer(out, WORDPIECE, len(vocabulary), wordpiece.special_ids(vocabulary), files)


def _appended(special_ids: SpecialIds, roles: tuple[str, ...], pieces: int) -> SpecialIds:
    """`roles` that are not there yet, after the last id of the vocabulary."""
    missing = [role for role in roles if role not in special_ids.present()]
    return replace(special_ids, **{role: pieces + number for number, role in enumerate(missing)})


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise DataError(f"{path}: no such file; name the one that was published with the model")
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path}: {path.stat().st_size} bytes is too large for a vocabulary; download it again")
    with naming(path):
        return path.read_bytes()


def _json(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(_read(path))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error!s:.200}); download it again") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object; download it again")
    return value


def _added(path: Path, whole: dict[str, Any]) -> dict[str, int]:
    """Symbol -> id of `added_tokens`."""
    try:
        return {str(token["content"]): int(token["id"]) for token in whole.get("added_tokens") or ()}
    except (TypeError, KeyError, ValueError):
        raise DataError(f"{path}: its added_tokens are damaged; download it again") from None


def _numbered(path: Path, vocabulary: Mapping[str, Any]) -> dict[str, int]:
    """By id. Raises DataError for ids that are not 0, 1, 2, ..."""
    ids = list(vocabulary.values())
    if not ids or not all(type(number) is int for number in ids) or sorted(ids) != list(range(len(ids))):
        raise DataError(f"{path}: its ids are not 0, 1, 2, ...; download it again")
    return dict(sorted(vocabulary.items(), key=lambda item: item[1]))


def _is_bert(normalizer: Any) -> bool:
    """Accents are stripped where text is lower-cased, as by default."""
    return _has(normalizer, _BERT) and normalizer.get("strip_accents") in (None, normalizer.get("lowercase"))


def _has(part: Any, wanted: Mapping[str, Any]) -> bool:
    defaults = {"use_regex": True}
    return isinstance(part, dict) and all(part.get(key, defaults.get(key)) == value for key, value in wanted.items())


def _provenance(paths: tuple[Path, ...] | list[Path], contents: list[bytes]) -> list[str]:
    """One line for the files that are published ones, one for those that are not."""
    known = [PUBLISHED.get(hashlib.sha256(content).hexdigest()) for content in contents]
    lines = [f"known by sha256: {', '.join(filter(None, known))}"] if any(known) else []
    if strange := [path.name for path, name in zip(paths, known, strict=True) if name is None]:
        lines.append(f"not among the published files that are known, taken as they are: {', '.join(strange)}")
    return lines
