"""Row 19: text to packed shards by the kinds that the `tokenizers` library encodes, beside the library alone.

Both work on one core, the library on text that lies in memory; ids are the same.

Vocabularies are learned from the text (`--text`, else the embedded corpus); those that were published are as fast. The
library gets the text in the pieces that suit it best: lines, cut where that changes no id. Every build starts cold.
"""

from __future__ import annotations

import os
import re
import tempfile
from functools import partial
from pathlib import Path

from gpt1_ds.common.versions import installed
from gpt1_ds.data.parts import utf8_bytes
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.tokenizers.tokenizer_json import TokenizerJson
from gpt1_ds.data.tokenizers.train import Model, train_tokenizer
from tools.bench.rows import Options, Ratio, Row, ratio, take_turns
from tools.bench.tokenization import Ids, first, pair, read, write

APART = True  # torch is imported by other processes
KINDS: tuple[Model, ...] = ("gpt2-bpe", "wordpiece")
PIECES = 8000
_LINES = re.compile(r"(?<=\S\n)(?=\S)")


def measure(options: Options) -> Row:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = list(options.text)
        if not inputs or options.quick:
            inputs = [write(folder / "text.jsonl", first(read(inputs or ["python-docs"]), options.quick))]
        texts = read(inputs)
        turns = {}
        for kind in KINDS:
            train_tokenizer(inputs, folder / kind, 1000 if options.quick else PIECES, model=kind)
            library = (f"{kind}: the library alone", library_alone)
            turns |= pair(folder / kind, inputs, texts, library, f"{kind}: data build")
        series = take_turns(turns, options.rounds)
    found = partial(ratio, series)
    ratios = [
        Ratio(
            f"{kind}: data build / the library alone", found(f"{kind}: data build", f"{kind}: the library alone"), 1.0
        )
        for kind in KINDS
    ]
    configuration = {
        "text": [Path(one).name for one in options.text] or "python-docs",
        "bytes": sum(map(utf8_bytes, texts)),
        "documents": len(texts),
        "unit": "1e6 B",
        "tokenizers": installed("tokenizers"),
    }
    checks = {"ids": "identical, document by document"}
    return Row(19, "text to packed shards, byte-level BPE and WordPiece", "MB/s", series, ratios, configuration, checks)


def library_alone(folder: Path, texts: list[str]) -> Ids:
    """The library's own encoder on the lines of each text."""
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, TokenizerJson), f"{folder} is of another kind"
    encode = tokenizer.backend.encode_batch_fast
    return [
        [number for line in encode(_LINES.split(text), add_special_tokens=False) for number in line.ids]
        for text in texts
    ]
