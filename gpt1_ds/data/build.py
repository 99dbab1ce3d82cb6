"""From text to a dataset folder: units are tokenized by worker processes, then joined in order.

`OUT/.parts/KEY/` holds finished parts, KEY naming inputs, tokenizer and options, so a build that was ended at any
moment continues where it was and gives the same bytes. `dataset.json` is written last: a folder without it is no
dataset.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import published_folder, write_json
from gpt1_ds.common.log import Show, say, show_nothing
from gpt1_ds.common.text import count
from gpt1_ds.data import pool
from gpt1_ds.data.dataset import DESCRIPTION, FORMAT, TOKENIZER, Dataset, description_of
from gpt1_ds.data.inputs import find_inputs
from gpt1_ds.data.parts import PartSummary, PartTask, finished_part, part_folder
from gpt1_ds.data.reading import say_left_out
from gpt1_ds.data.segments import TEXT_KEY, Input, SourceFile, Unit
from gpt1_ds.data.sentences import add_counts
from gpt1_ds.data.shards import token_dtype
from gpt1_ds.data.split_rule import TRAIN, VALIDATION, SplitRule
from gpt1_ds.data.split_writer import PartJoiner, SplitWriter
from gpt1_ds.data.splitter import SPLITTER, SPLITTER_VERSION
from gpt1_ds.data.tokenizers.base import Tokenizer, copy_tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.units import UNIT_BYTES, plan_units

PARTS = ".parts"
UNITS = 2  # the version of how inputs are cut into units: parts of an older one are made again
SHARD_TOKENS = 1 << 30
_OWN_FILE = re.compile(
    rf"({TRAIN}|{VALIDATION})-\d{{5}}\.(bin|idx|(lengths|borders)\.tmp)|{TOKENIZER}|\.({TOKENIZER}|{DESCRIPTION})\.\w+\.tmp"
)


@dataclass(frozen=True)
class Options:
    """What, besides inputs and tokenizer, determines the bytes of a dataset."""

    validation: float
    unwrap: bool
    unit_bytes: int = UNIT_BYTES
    shard_tokens: int = SHARD_TOKENS
    split_sentences: bool = False
    text_key: str = TEXT_KEY

    def described(self) -> dict[str, Any]:
        """Returns the options as dataset.json has always had them: without what is as usual."""
        options = asdict(self)
        if self.text_key == TEXT_KEY:
            del options["text_key"]
        if not options.pop("split_sentences"):
            return options
        return {**options, "split_sentences": {"splitter": SPLITTER, "version": SPLITTER_VERSION}}


def build(
    inputs: Sequence[str | Path],
    tokenizer_folder: Path | str,
    out: Path | str,
    workers: int | None = None,
    validation: float = 0.01,
    unwrap: bool = False,
    show: Show = show_nothing,
    *,
    split_sentences: bool = False,
    text_key: str = TEXT_KEY,
    unit_bytes: int = UNIT_BYTES,
    shard_tokens: int = SHARD_TOKENS,
) -> Dataset:
    """Tokenizes `inputs` into the dataset folder `out`; the same bytes for any number of workers (None: one per core).

    `validation` is the fraction of documents that is held out (0: none; of too few documents for that, the tail of the
    last one, as that fraction of all tokens). With `split_sentences` the index holds where each sentence begins; the
    tokens are the same. `text_key` is the key of a JSON line, or the column of a table, with the text. A build that was
    interrupted continues; a finished one with the same inputs and options is left as it is. `show` receives the bytes
    of input done (a compressed file counts as it lies on the disk, python-docs 0) and the tokens so far. Raises
    DataError for unusable inputs, for a file that is named twice where text is held out, for a finished `out` of other
    inputs, and when there is too little text.
    """
    if not 0 <= validation < 1:
        raise DataError(f"--validation={validation} must be in [0, 1)")
    if workers is not None and workers < 1:
        raise DataError(f"--workers={workers} is too few; use at least 1, or leave it out for one per core")
    out, tokenizer_folder = Path(out), Path(tokenizer_folder)
    if out.exists() and not out.is_dir():
        raise DataError(f"--out={out} is a file; choose a folder")
    if tokenizer_folder.resolve() == (out / TOKENIZER).resolve() and not (out / DESCRIPTION).exists():
        raise DataError(f"--out={out} holds the tokenizer itself; choose another --out")
    if any(Path(one).resolve() == out.resolve() for one in inputs):
        raise DataError(f"--out={out} is the --input itself; choose another --out")
    found = find_inputs(inputs, text_key)
    if validation:
        _check_named_once(found)
    tokenizer = load_tokenizer(tokenizer_folder)
    options = Options(validation, unwrap, unit_bytes, shard_tokens, split_sentences, text_key)
    job = _Build(found, tokenizer, tokenizer_folder, out, options)
    out.mkdir(parents=True, exist_ok=True)
    with _only_writer(out):
        if (out / DESCRIPTION).exists():
            return job.finished()
        return job.run(workers or len(os.sched_getaffinity(0)), show)


@dataclass(frozen=True)
class _Build:
    inputs: list[Input]
    tokenizer: Tokenizer
    tokenizer_folder: Path
    out: Path
    options: Options

    @cached_property  # each unit asks for it, and inputs may be many files
    def key(self) -> str:
        """Names inputs (by name, size and time of change), tokenizer and options."""
        files = [[(file.name, file.size, file.changed) for file in one.files] for one in self.inputs]
        parts = [FORMAT, [one.name for one in self.inputs], files, self.tokenizer.fingerprint, self.options.described()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def parts(self) -> Path:
        return self.out / PARTS / f"{self.key[:16]}-{UNITS}"

    def finished(self) -> Dataset:
        """Returns the dataset that is there already, if it is of the same inputs and options."""
        dataset = Dataset(self.out)
        if dataset.description.get("key") != self.key:
            other = self._difference(dataset.description)
            raise DataError(f"{self.out}: holds a dataset {other}; choose another --out or remove it")
        shutil.rmtree(self.out / PARTS, ignore_errors=True)  # a kill may have come between
        say(f"{self.out}: up to date, nothing to do")
        return dataset

    def _difference(self, before: dict[str, Any]) -> str:
        """Returns in words how the dataset that is there differs from this one."""
        if before["format"] != FORMAT:
            return f"of format {before['format']} already, not {FORMAT}"
        if before["tokenizer"]["fingerprint"] != self.tokenizer.fingerprint:
            return "of another tokenizer already"
        was, now = before["options"], self.options.described()
        for key in was | now:
            if was.get(key) != now.get(key):
                return f"made {_asked(key, was.get(key))} already, and this is {_asked(key, now.get(key))}"
        names = [one["name"] for one in before["inputs"]]
        if names != [one.name for one in self.inputs]:
            return f"of other inputs already: {', '.join(names)}"
        for one, old in zip(self.inputs, before["inputs"], strict=True):
            files, size = len(one.files), sum(file.size for file in one.files)
            if (old["files"], old["size"]) != (files, size):
                return (
                    f"of another {one.name} already: {old['files']} files of {old['size']} bytes, not {files} of {size}"
                )
        return "of other inputs already: since then a file has got another name, size or time of change"

    def run(self, workers: int, show: Show) -> Dataset:
        self._start_clean()
        units = plan_units(self.inputs, self.options.unit_bytes, self.options.unwrap, self.tokenizer.whole_documents)
        summaries = self._tokenize(units, workers, show)
        say_left_out(str(self.out), sum(part.left_out for part in summaries), self.options.text_key)
        splits = self._join(summaries)
        if splits[TRAIN]["tokens"] < 2:
            raise self._useless("too little text to train on; add more")
        with published_folder(self.out / TOKENIZER) as folder:
            copy_tokenizer(self.tokenizer_folder, folder)
            if load_tokenizer(folder).fingerprint != self.tokenizer.fingerprint:
                raise DataError(f"{self.tokenizer_folder}: another tokenizer than when the build began; run again")
        write_json(self.out / DESCRIPTION, self._describe(units, summaries, splits))
        shutil.rmtree(self.out / PARTS)
        return Dataset(self.out)

    def _useless(self, why: str) -> DataError:
        """Removes what was made of inputs that give no dataset, and the folder where nothing else is in it."""
        self._start_clean()
        shutil.rmtree(self.out / PARTS)
        with contextlib.suppress(OSError):
            self.out.rmdir()
        return DataError(f"{', '.join(one.name for one in self.inputs)}: {why}")

    def _start_clean(self) -> None:
        """Removes what an unfinished build left, except the finished parts of this one. Imported files stay.

        Raises DataError when files that a build would write are there and no unfinished build left them.
        """
        left = sorted(path for path in self.out.iterdir() if _OWN_FILE.fullmatch(path.name))
        if left and not (self.out / PARTS).exists():
            raise DataError(f"{left[0]}: is in the way and no unfinished build left it; choose another --out")
        self.parts.mkdir(parents=True, exist_ok=True)
        for path in (*left, *(self.out / PARTS).iterdir(), *self.parts.glob(".*.tmp")):
            if path.is_dir() and path != self.parts:
                shutil.rmtree(path)
            elif path.is_file():
                path.unlink()

    def _tokenize(self, units: Sequence[Unit], workers: int, show: Show) -> list[PartSummary]:
        """Returns one summary per unit, in order; parts that are there are not made again."""
        dtype = token_dtype(self.tokenizer.vocab_size)
        done = {unit.number: part for unit in units if (part := finished_part(self.parts, unit.number, dtype))}
        missing = [unit for unit in units if unit.number not in done]
        for unit in missing:
            shutil.rmtree(part_folder(self.parts, unit.number), ignore_errors=True)
        total = sum(unit.size for unit in units)
        bytes_done = total - sum(unit.size for unit in missing)
        tokens = sum(part.tokens + part.open_tokens for part in done.values())
        show(bytes_done, f"{count(tokens)} tokens", total)
        options = self.options
        task = PartTask(self.tokenizer_folder.resolve(), self.parts.resolve(), options.unwrap, options.split_sentences)
        with contextlib.closing(pool.run(task, missing, workers)) as results:
            for unit, part in results:
                done[unit.number] = part
                bytes_done += unit.size
                tokens += part.tokens + part.open_tokens
                show(bytes_done, f"{count(tokens)} tokens", total)
        return [done[unit.number] for unit in units]

    def _join(self, summaries: Sequence[PartSummary]) -> dict[str, Any]:
        documents = sum(part.documents for part in summaries)
        if documents == 0:
            raise self._useless("no text in there; name files with text, or its key by --text-key")
        dtype, rule = token_dtype(self.tokenizer.vocab_size), SplitRule(self.options.validation, documents)
        train, validation = (
            SplitWriter(self.out, name, dtype, self.options.shard_tokens) for name in (TRAIN, VALIDATION)
        )
        eod, bytes_per_token = self.tokenizer.eod_id, self.tokenizer.token_bytes()
        added = PartJoiner(self.parts, summaries, train, validation, rule, eod, bytes_per_token).join()
        expected = sum(part.tokens + part.open_tokens for part in summaries) + added
        assert train.tokens + validation.tokens == expected, f"{self.out}: joining lost some of {expected} tokens"
        entries = {TRAIN: train.finish(), VALIDATION: validation.finish()}
        if self.options.split_sentences:
            add_counts(self.out, entries, dtype.name, self.tokenizer.vocab_size)
        return {name: entry for name, entry in entries.items() if name == TRAIN or entry["tokens"]}

    def _describe(
        self, units: Sequence[Unit], summaries: Sequence[PartSummary], splits: dict[str, Any]
    ) -> dict[str, Any]:
        documents = np.zeros(len(self.inputs), dtype=np.int64)
        for unit, part in zip(units, summaries, strict=True):
            documents[unit.input] += part.documents
        inputs = [
            {"name": one.name, "files": len(one.files), "size": size, "documents": int(number)}
            for one, number in zip(self.inputs, documents, strict=True)
            for size in [sum(file.size for file in one.files)]
        ]
        dtype, options = token_dtype(self.tokenizer.vocab_size).name, self.options.described()
        return description_of(splits, dtype, self.tokenizer, key=self.key, options=options, inputs=inputs)


def _check_named_once(inputs: Sequence[Input]) -> None:
    """Raises DataError for a file that several names lead to: a document of it may be held out in one place only."""
    seen: set[SourceFile] = set()
    for file in (replace(file, name="") for one in inputs for file in one.files):
        if file in seen:
            raise DataError(
                f"{file}: --input leads to it twice, and what is held out must not be trained on, too; name it once, "
                "or use --validation 0"
            )
        seen.add(file)


def _asked(key: str, value: Any) -> str:
    """Returns how a person asks for an option, such as `with --validation=0.05` or `without --unwrap`."""
    word = f"--{'sentences' if key == 'split_sentences' else key.replace('_', '-')}"
    if value in (False, None):
        return f"without {word}"
    if isinstance(value, dict):
        return f"with {word} of {' '.join(map(str, value.values()))}"
    return f"with {word}" if value is True else f"with {word}={value}"


@contextlib.contextmanager
def _only_writer(out: Path) -> Iterator[None]:
    """Keeps a second build out of this folder; the system lets go when the process ends, however it ends."""
    descriptor = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES):
                raise DataError(
                    f"{out}: another build writes this folder; wait for it or choose another --out"
                ) from None
            # some network file systems cannot lock a folder: continue without
        yield
    finally:
        os.close(descriptor)
