"""SentencePiece models that are not T5's: the ids of the library, roles of the file, sentinels after its pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.build import build
from gpt1_ds.data.tokenizers.imports import import_sentencepiece
from gpt1_ds.data.verify import verify_dataset
from tests.unit.data.formats import DOCUMENTS, write_jsonl
from tests.unit.data.tokenizers.t5_files import spiece_model

TEXT = "Ab  cd\n ef <mask> </s> café \u2581 \U0001f600 karen.\n"
KINDS: list[dict[str, Any]] = [
    {"model_type": "bpe", "pieces": 400, "byte_fallback": True, "bos_id": 3, "normalization_rule_name": "identity"},
    {"control_symbols": "[CLS],[SEP],[MASK]"},
    {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
]


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_ids_are_the_library_s(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "any.model").write_bytes(spiece_model(**settings))
    ours, (line,) = import_sentencepiece(tmp_path / "any.model", tmp_path / "tok", 5)
    assert line.startswith("any.model: unknown <unk>, eod </s>")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=spiece_model(**settings))
    assert ours.encode(TEXT).tolist() == theirs.EncodeAsIds(TEXT)
    assert ours.decode([*ours.encode(TEXT), ours.eod_id, ours.vocab_size - 1]) == theirs.DecodeIds(
        [number for number in theirs.EncodeAsIds(TEXT) if number != theirs.unk_id()]
    )
    assert ours.vocab_size == theirs.GetPieceSize() + 5
    assert ours.first_sentinel == theirs.GetPieceSize()
    assert (ours.eod_id, ours.unknown_id, ours.pad_id) == (theirs.eos_id(), theirs.unk_id(), theirs.pad_id())
    rows = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS[:40])
    one = build([rows], tmp_path / "tok", tmp_path / "one", workers=1).split("train")
    two = build([rows], tmp_path / "tok", tmp_path / "two", workers=2, unit_bytes=3000, split_sentences=True)
    assert np.array_equal(one.read(0, one.tokens), two.split("train").read(0, one.tokens))
    assert two.split("train").sentence_counts["sentences"] > one.documents
    verify_dataset(tmp_path / "two")


def test_roles_by_name(tmp_path: Path) -> None:
    path = tmp_path / "any.model"
    path.write_bytes(spiece_model(control_symbols="<head>,[SEP]", user_defined_symbols="<mask>"))
    tokenizer, _ = import_sentencepiece(path, tmp_path / "tok", None, ["cls=<head>"])
    assert set(tokenizer.special_ids.present()) == {"unknown", "eod", "cls", "separator", "pad"}
    assert tokenizer.special_ids.sentinels is None
    with pytest.raises(DataError, match=r"any\.model: '<mask>' is a piece of text, not a control symbol"):
        import_sentencepiece(path, tmp_path / "new", None, ["mask=<mask>"])
    with pytest.raises(DataError, match="has no symbol '<x>' for --role mask"):
        import_sentencepiece(path, tmp_path / "new", None, ["mask=<x>"])
    path.write_bytes(spiece_model(model_type="bpe", eos_id=-1, pad_id=-1, unk_id=0))
    with pytest.raises(DataError, match=r"any\.model: no symbol is known to end a document; name one by --role eod="):
        import_sentencepiece(path, tmp_path / "new")
