"""T5's unigram model on a small vocabulary; tests/golden compares the published one with transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.base import METADATA, Tokenizer
from gpt1_ds.data.tokenizers.imports import MAX_SENTINELS, import_hf, import_sentencepiece
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.tokenizers.t5_unigram import MODEL, PUBLISHED, model_of_file, read_model
from gpt1_ds.data.tokenizers.tokenizer_json import TokenizerJson
from gpt1_ds.interop.hf_tokenizer import tokenizer_files
from tests.helpers.hard_texts import CUTS, TEXTS, encode_in_parts
from tests.unit.data.corpora import sentences
from tests.unit.data.tokenizers.t5_files import spiece_model

OLD = Path(__file__).parents[3] / "golden" / "tokenizers-format-2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("t5")
    (place / PUBLISHED).write_bytes(spiece_model())
    _, remarks = import_sentencepiece(place / PUBLISHED, place / "out", 20)
    assert remarks == ["not among the published files that are known, taken as they are: spiece.model"]
    return place


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder / "out")


def test_the_ids_of_sentencepiece(tokenizer: Tokenizer) -> None:
    library = sentencepiece.SentencePieceProcessor(model_proto=spiece_model())
    for text in [*sentences(200, seed=9), "  \uff21 wide ﬁ\t²  Ω漢 \u2581a\nb ", ""]:
        assert tokenizer.encode(text).tolist() == library.EncodeAsIds(text), text


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, places=CUTS)
def test_pieces_of_a_text_joined_are_the_whole(tokenizer: Tokenizer, text: str, places: list[int]) -> None:
    assert encode_in_parts(tokenizer, text, places) == tokenizer.encode(text).tolist()


def test_sentinels_are_the_last_ids(tokenizer: Tokenizer) -> None:
    assert (tokenizer.vocab_size, tokenizer.first_sentinel) == (140, 120)
    assert tokenizer.special_ids.values() == {"unknown": 2, "eod": 1, "pad": 0, "sentinels": 20}
    assert isinstance(tokenizer, TokenizerJson)
    assert (tokenizer.symbols["<extra_id_0>"], tokenizer.symbols["<extra_id_19>"]) == (139, 120)
    ids = tokenizer.encode("</s> <pad> <unk> <extra_id_0>")
    assert not np.isin(ids, [0, 1, *range(120, 140)]).any(), "a text cannot name a symbol"


def test_decoding_gives_the_gist(tokenizer: Tokenizer) -> None:
    text = sentences(1)[0]
    ids = tokenizer.encode(f" {text}  {text}\n漢")
    assert tokenizer.decode([*ids, 1, 139, 0]).rstrip() == f"{text} {text}"
    assert tokenizer.token_bytes()[ids].sum() == len(f" {text} {text} ")
    begins = tokenizer.begins_word()[tokenizer.encode("the word")]
    assert begins[0]
    assert begins.sum() == 2


def test_what_was_exported_comes_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name, value in tokenizer_files(tokenizer, 32).items():
        (tmp_path / name).write_text(json.dumps(value))
    back, remarks = import_hf(tmp_path, tmp_path / "back")
    assert remarks == ["tokenizer.json: unknown <unk>, eod </s>, pad <pad>, 20 sentinels"]
    assert (back.special_ids, back.encode("the word").tolist()) == (
        tokenizer.special_ids, tokenizer.encode("the word").tolist()
    )  # fmt: skip
    (tmp_path / PUBLISHED).write_bytes(spiece_model())  # the newer file has precedence, as in transformers
    assert import_hf(tmp_path, tmp_path / "newer")[0].vocab_size == 140
    old = tmp_path / "old"
    old.mkdir()
    (old / PUBLISHED).write_bytes(spiece_model())
    (old / "tokenizer_config.json").write_text('{"extra_ids": 20}')
    assert import_hf(old, tmp_path / "sized")[0].special_ids == tokenizer.special_ids
    (old / PUBLISHED).write_bytes(spiece_model(bos_id=3))  # as XLNet's
    with pytest.raises(DataError, match=r"not a model like T5's, .*; import it by --sentencepiece$"):
        import_hf(old, tmp_path / "other")


def refused(content: bytes, out: Path, sentinels: int = 20) -> str:
    out.mkdir(exist_ok=True)
    (out / PUBLISHED).write_bytes(content)
    with pytest.raises(DataError) as caught:
        import_sentencepiece(out / PUBLISHED, out / "out", sentinels)
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)
    assert not (out / "out").exists()
    return str(caught.value)


@pytest.mark.parametrize(
    "settings_of_it",
    [
        {"model_type": "bpe"},
        {"bos_id": 3},
        {"control_symbols": "<extra_id_0>"},
        {"add_dummy_prefix": False},
        {"pieces": 400, "byte_fallback": True},
        {"pad_id": -1, "eos_id": 0, "unk_id": 1},
    ],
    ids=str,
)
def test_models_of_another_kind(tmp_path: Path, settings_of_it: dict[str, Any]) -> None:
    assert model_of_file(tmp_path, spiece_model(**settings_of_it)) is None


def test_files_that_are_refused(tmp_path: Path) -> None:
    whole = spiece_model()
    for content, message in (
        (b"", "not a SentencePiece model (has no pieces)"),
        (b"PK\x03\x04" * 10, "not a SentencePiece model"),
        (whole[:1000], "not a SentencePiece model (ends within"),
        (whole + b"\x0a\x03\x0a\x01a", "is empty, no text or there twice"),
        (whole + b"\x0a\x0a\x0a\x03new\x15\x00\x00\xc0\x7f", "the score of the piece 120 is nan"),
        (whole + b"\x1a\x06\x12\x04\x10\x00\x00\x00", "its map of characters is cut off"),  # the later map counts
    ):
        assert message in refused(content, tmp_path)


def test_numbers_of_sentinels_that_are_refused(tmp_path: Path) -> None:
    for number in (-1, MAX_SENTINELS + 1):
        assert f"--sentinels {number} must be from 0 to" in refused(spiece_model(), tmp_path, number)
    none, _ = import_sentencepiece(tmp_path / PUBLISHED, tmp_path / "none", 0)
    assert none.special_ids.values() == {"unknown": 2, "eod": 1, "pad": 0}


def test_a_changed_folder(tmp_path: Path) -> None:
    for content in (b"{", b"{}", b'{"charsmap": "", "pieces": [["a"]]}', b'{"charsmap": "?", "pieces": []}'):
        with pytest.raises(DataError, match="not the pieces of a unigram model"):
            read_model(Path(MODEL), content)
    with pytest.raises(DataError, match="the score of the piece 0 is 'x'"):
        read_model(Path(MODEL), b'{"charsmap": "", "pieces": [["a", "x"]]}')
    old = Path(shutil.copytree(OLD / "t5-unigram", tmp_path / "old"))
    metadata = json.loads((old / METADATA).read_text())
    (old / METADATA).write_text(json.dumps({**metadata, "special_ids": {**metadata["special_ids"], "pad": 5}}))
    with pytest.raises(DataError, match="not the pieces of the metadata"):
        load_tokenizer(old)
