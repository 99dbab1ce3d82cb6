"""Megatron datasets of other programs as dataset folders: verified, hashed and described, but not rewritten."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import is_taken, published_folder, sha256_file, write_json
from gpt1_ds.common.log import Show, show_nothing
from gpt1_ds.data.dataset import DESCRIPTION, TOKENIZER, Dataset, description_of, hash_data
from gpt1_ds.data.sentences import add_counts
from gpt1_ds.data.shards import Shard, ShardSummary
from gpt1_ds.data.split_rule import TRAIN, VALIDATION
from gpt1_ds.data.tokenizers.base import Tokenizer, copy_tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.verify import check_index, token_blocks, unended

ENDINGS = (".bin", ".idx")


def adopt(
    train: Sequence[str | Path],
    tokenizer_folder: Path | str,
    out: Path | str,
    validation: Sequence[str | Path] = (),
    copy: bool = False,
    show: Show = show_nothing,
) -> Dataset:
    """Makes the dataset folder `out` of pairs of `.bin` and `.idx` files, each named with an ending or without.

    Every token is read once. The shards of `out` are symbolic links to the pairs, which stay where they are, or with
    `copy` copies. Documents of several sequences keep them as sentences. Raises DataError for files that do not fit one
    another, ids that the tokenizer lacks, documents that do not end with its `<eod>`, and held-out text that is also
    trained on.
    """
    out, tokenizer = Path(out), load_tokenizer(tokenizer_folder)
    pairs = {TRAIN: [_prefix(one) for one in train], VALIDATION: [_prefix(one) for one in validation]}
    DataError.raise_all(
        f"{prefix}: there is no {prefix.name}{' and no '.join(missing)}; name a pair of {' and '.join(ENDINGS)} files"
        for prefix in (*pairs[TRAIN], *pairs[VALIDATION])
        if (missing := [ending for ending in ENDINGS if not Path(f"{prefix}{ending}").is_file()])
    )
    if is_taken(out):
        raise DataError(f"{out}: is there already; choose another --out or remove it")
    total = sum(map(len, pairs.values()))
    with published_folder(out) as folder:
        splits: dict[str, Any] = {}
        dtypes: set[str] = set()
        for name, prefixes in pairs.items():
            if prefixes:
                splits[name] = _adopt_split(
                    folder, name, prefixes, tokenizer, copy, lambda done: show(done, total=total)
                )
                dtypes |= splits[name].pop("dtypes")
        _check_apart(pairs, splits)
        if len(dtypes) > 1:
            raise DataError(f"{pairs[TRAIN][0]}: the pairs hold {' and '.join(sorted(dtypes))} ids; adopt them apart")
        (dtype,) = dtypes
        if splits[TRAIN]["tokens"] < 2:
            raise DataError(f"{pairs[TRAIN][0]}.bin: too little text to train on; add more")
        shards = [shard for entry in splits.values() for shard in entry["shards"]]
        if any(shard["sequences"] != shard["documents"] for shard in shards):  # several of a document are sentences
            add_counts(folder, splits, dtype, tokenizer.vocab_size)
        copy_tokenizer(Path(tokenizer_folder), folder / TOKENIZER)
        write_json(folder / DESCRIPTION, _describe(pairs, splits, dtype, tokenizer))
    return Dataset(out)


def _prefix(name: str | Path) -> Path:
    path = Path(name).absolute()  # a link's own name: what it leads to may have another, and another neighbour
    if path.is_symlink() and path.suffix not in ENDINGS:
        path = path.resolve()
    return path.with_suffix("") if path.suffix in ENDINGS else path


def _adopt_split(
    folder: Path, name: str, prefixes: Sequence[Path], tokenizer: Tokenizer, copy: bool, show: Any
) -> dict[str, Any]:
    """Returns the entry of dataset.json, with the set of `dtypes`."""
    entry: dict[str, Any] = {"tokens": 0, "documents": 0, "bytes": 0, "shards": [], "dtypes": set()}
    bytes_of = tokenizer.token_bytes()
    for number, prefix in enumerate(prefixes):
        shard = _opened(prefix)
        digest, text_bytes = _read(shard, tokenizer, bytes_of)
        documents = _documents(shard, tokenizer)
        target = folder / f"{name}-{number:05d}"
        for ending in ENDINGS:
            source, place = Path(f"{prefix}{ending}").resolve(), Path(f"{target}{ending}")
            shutil.copyfile(source, place) if copy else place.symlink_to(source)
        bin_size, idx_size = (path.stat().st_size for path in (shard.bin_path, shard.idx_path))
        counts, idx_sha256 = (len(shard.tokens), shard.sequences), sha256_file(shard.idx_path)
        summary = ShardSummary(*counts, bin_size, digest, idx_size, idx_sha256)
        entry["shards"].append({"name": target.name, "documents": documents, **asdict(summary)})
        for key, value in (("tokens", len(shard.tokens)), ("documents", documents), ("bytes", text_bytes)):
            entry[key] += value
        entry["dtypes"].add(shard.dtype.name)
        show(number + 1)
    return entry


def _check_apart(pairs: dict[str, list[Path]], splits: dict[str, Any]) -> None:
    """Raises DataError for a pair of which the tokens are among the held-out ones, whatever its name."""
    if VALIDATION in splits:
        held_out = {shard["bin_sha256"] for shard in splits[VALIDATION]["shards"]}
        DataError.raise_all(
            f"{prefix}: the same tokens are held out by --validation; leave the pair out of one of the two"
            for prefix, shard in zip(pairs[TRAIN], splits[TRAIN]["shards"], strict=True)
            if shard["tokens"] and shard["bin_sha256"] in held_out
        )


def _opened(prefix: Path) -> Shard:
    """Returns a pair whose files fit each other."""
    try:
        shard = Shard(prefix)
        check_index(shard)
    except DataError as error:
        raise DataError(*(line.replace("build the dataset", "make the pair") for line in error.problems)) from None
    return shard


def _read(shard: Shard, tokenizer: Tokenizer, bytes_of: Any) -> tuple[str, int]:
    """Returns (hex sha256, UTF-8 bytes of text) of all tokens, each in the vocabulary."""
    digest, text_bytes, size = hashlib.sha256(), 0, tokenizer.vocab_size
    vocabulary = f"the tokenizer's vocabulary of {size}; name the --tokenizer that the data was made with"
    for block in token_blocks(shard, size, vocabulary):
        digest.update(block.data)
        text_bytes += int(bytes_of[block].sum())
    return digest.hexdigest(), text_bytes


def _documents(shard: Shard, tokenizer: Tokenizer) -> int:
    """Returns how many documents there are, each ending with `<eod>`."""
    documents = len(shard.documents) - 1
    if (found := unended(shard, documents, tokenizer.eod_id)) is not None:
        document, last = found
        raise DataError(
            f"{shard.bin_path}: document {document} ends with the id {shard.tokens[last]}, not with the tokenizer's "
            f"end of a document, {tokenizer.eod_id}; make the data with --append-eod, or name the --tokenizer that it "
            "was made with"
        )
    return documents


def _describe(pairs: dict[str, list[Path]], splits: dict[str, Any], dtype: str, tokenizer: Tokenizer) -> dict[str, Any]:
    made_of = ["adopted", hash_data(splits, dtype, tokenizer.fingerprint)]
    inputs = [
        {"name": prefix.name, "files": 2, "size": shard["bin_size"], "documents": shard["documents"]}
        for name, prefixes in pairs.items()
        if name in splits
        for prefix, shard in zip(prefixes, splits[name]["shards"], strict=True)
    ]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
    return description_of(splits, dtype, tokenizer, key=key, options={"adopted": True}, inputs=inputs)
