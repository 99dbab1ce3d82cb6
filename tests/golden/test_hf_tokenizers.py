"""Byte-level BPE, WordPiece and T5's unigram model beside transformers' tokenizers of the same files: the same ids for
every text.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sentencepiece
import torch
import transformers
from hypothesis import given, settings

from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.imports import import_gpt2, import_hf, import_sentencepiece, import_wordpiece
from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.evaluation.generate import answer, decode_sentinels
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.interop.hf_tokenizer import tokenizer_files
from tests.helpers import foreign
from tests.helpers.hard_texts import HARD, SYMBOLS, TEXTS, every_character, lines_of, twelve_novels
from tests.helpers.shared_data import shared_data
from tests.unit.data.corpora import sentences

T5_NAMES = ("<pad>", "</s>", "<unk>", "<extra_id_")


class Pair(NamedTuple):
    ours: Tokenizer
    theirs: Any  # transformers', from the same files
    exact: bool = False  # decoding gives the text back, whatever it is


def trained_gpt2(folder: Path) -> Pair:
    (folder / "text.txt").write_text("\n".join(sentences(2000, seed=7)))
    ours = train_tokenizer([folder / "text.txt"], folder / "out", 700, model="gpt2-bpe", masks=True)
    return Pair(
        ours, of_merges("GPT2TokenizerFast", folder / "out" / "vocab.json", folder / "out" / "merges.txt"), exact=True
    )


def gpt2(folder: Path) -> Pair:
    source = shared_data("gpt2_bpe")
    ours, remarks = import_gpt2(source / "encoder.json", source / "vocab.bpe", folder / "out")
    assert remarks == ["known by sha256: GPT-2's encoder.json, GPT-2's vocab.bpe"]
    return Pair(ours, of_merges("GPT2TokenizerFast", source / "encoder.json", source / "vocab.bpe"), exact=True)


def roberta(folder: Path) -> Pair:
    """fairseq orders GPT-2's pieces by frequency; its list is not at hand. Assumed here: its first three pieces, then
    GPT-2's order. Control symbols, the number of pieces, and the three made-up words are as in roberta-base.
    """
    source = shared_data("gpt2_bpe")
    pieces = json.loads((source / "encoder.json").read_text())
    first = ["<s>", "<pad>", "</s>", "<unk>", ".", "Ġthe", ","]
    order = [*first, *(piece for piece in pieces if piece not in first)]
    order += ["madeupword0000", "madeupword0001", "madeupword0002", "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(order)}))
    ours, remarks = import_gpt2(folder / "vocab.json", source / "vocab.bpe", folder / "out")
    assert remarks == [
        "known by sha256: GPT-2's vocab.bpe",
        "not among the published files that are known, taken as they are: vocab.json",
    ]
    return Pair(ours, of_merges("RobertaTokenizerFast", folder / "vocab.json", source / "vocab.bpe"), exact=True)


def of_merges(kind: str, vocabulary: Path, merges: Path) -> Any:
    # the text of a control symbol in a text is ordinary text
    return getattr(transformers, kind)(vocab=str(vocabulary), merges=str(merges), split_special_tokens=True)


def trained_wordpiece(folder: Path) -> Pair:
    (folder / "text.txt").write_text("\n".join([*sentences(2000, seed=7), "naïve CAFÉ 漢字, (so)!"]))
    ours = train_tokenizer([folder / "text.txt"], folder / "out", 300, model="wordpiece", cased=True)
    return Pair(ours, of_words(folder / "out" / "vocab.txt", lower_case=False))


def bert(folder: Path) -> Pair:
    return published_wordpiece(folder, cased=False)


def cased_bert(folder: Path) -> Pair:
    """The uncased vocabulary as if it were a cased one: most capitals are unknown to it then."""
    return published_wordpiece(folder, cased=True)


def published_wordpiece(folder: Path, cased: bool) -> Pair:
    vocabulary = shared_data("bert_wordpiece") / "vocab.txt"
    ours, remarks = import_wordpiece(vocabulary, folder / "out", cased)
    assert remarks == ["known by sha256: BERT's uncased vocab.txt"]
    return Pair(ours, of_words(vocabulary, lower_case=not cased))


def of_words(vocabulary: Path, lower_case: bool) -> Any:
    loader = transformers.BertTokenizerFast
    return loader(vocab=str(vocabulary), do_lower_case=lower_case, split_special_tokens=True)


def t5(folder: Path) -> Pair:
    file = shared_data("t5_spiece") / "spiece.model"
    ours, remarks = import_sentencepiece(file, folder / "out")
    assert remarks == ["known by sha256: T5's spiece.model"]
    (folder / "theirs").mkdir()
    shutil.copy(file, folder / "theirs")
    return Pair(ours, transformers.T5Tokenizer.from_pretrained(folder / "theirs"))


BYTES, WORDS = (trained_gpt2, gpt2, roberta), (trained_wordpiece, bert, cased_bert)
PUBLISHED = (gpt2, roberta, bert, cased_bert, t5)


def pairs(*kinds: Callable[[Path], Pair]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pair", kinds, indirect=True, ids=lambda kind: kind.__name__)


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return request.param(tmp_path_factory.mktemp(request.param.__name__))


def assert_equal(pair: Pair, texts: list[str]) -> None:
    if "sentinels" in pair.ours.special_ids.values():  # names of symbols in a text are symbols to T5's
        texts = [text for text in texts if not any(name in text for name in T5_NAMES)]
    expected = pair.theirs(texts, add_special_tokens=False)["input_ids"]
    for text, ids in zip(texts, expected, strict=True):
        assert pair.ours.encode(text).tolist() == ids, ascii(text)
        assert not pair.exact or pair.ours.decode(ids) == text


@pairs(*BYTES, *WORDS, t5)
def test_hard_texts(pair: Pair) -> None:
    assert_equal(pair, HARD)
    assert_equal(pair, [every_character()])
    assert_equal(pair, ["e \u200d\u059f \n\u200d\u059f", "\u0600 \u200d\u064e a\r\n\u0301b"])  # marks after a space


@pairs(*BYTES, *WORDS, t5)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_every_text(pair: Pair, text: str) -> None:
    assert_equal(pair, [text])


@pairs(gpt2, bert, cased_bert)
def test_every_line_of_twelve_novels(pair: Pair) -> None:
    lines = lines_of(twelve_novels())
    lower_case = getattr(pair.theirs, "do_lower_case", True)
    assert_equal(pair, lines if lower_case else lines[::5])  # nobody has a cased vocabulary like this one


@pairs(gpt2)
def test_a_whole_novel(pair: Pair) -> None:
    assert_equal(pair, twelve_novels()[:1])


@pairs(t5)
def test_every_line_of_twelve_novels_with_the_library_of_t5(pair: Pair) -> None:
    lines = lines_of(twelve_novels())
    library = sentencepiece.SentencePieceProcessor(model_file=str(shared_data("t5_spiece") / "spiece.model"))
    theirs = pair.theirs(lines, add_special_tokens=False)["input_ids"]
    for line, ids, expected in zip(lines, library.EncodeAsIds(lines), theirs, strict=True):
        assert pair.ours.encode(line).tolist() == ids == expected, ascii(line)


@pytest.mark.parametrize(
    ("pair", "size", "roles"),
    [
        (gpt2, 50257, {"eod": 50256}),
        (roberta, 50265, {"unknown": 3, "eod": 2, "cls": 0, "separator": 2, "pad": 1, "mask": 50264}),
        (bert, 30522, {"unknown": 100, "eod": 102, "cls": 101, "separator": 102, "pad": 0, "mask": 103}),
        (t5, 32100, {"unknown": 2, "eod": 1, "pad": 0, "sentinels": 100}),
    ],
    indirect=["pair"],
)
def test_symbols(pair: Pair, size: int, roles: dict[str, int]) -> None:
    ours = pair.ours
    assert ours.vocab_size == len(pair.theirs) == size
    assert ours.special_ids.values() == roles
    symbols = {number for role, number in roles.items() if role not in ("unknown", "sentinels")}
    if "sentinels" in roles:
        symbols |= {*range(ours.first_sentinel, size)}
    assert not symbols & set(ours.encode(f"{SYMBOLS} <extra_id_0> </s>").tolist()), "a text cannot name a symbol"
    assert ours.token_bytes()[sorted(symbols)].sum() == 0
    assert ours.decode([*ours.encode("so far, it was"), *symbols]) == "so far, it was"


@pairs(bert, cased_bert, t5)
def test_decoding_is_that_of_transformers(pair: Pair) -> None:
    for text in (*HARD, *sentences(50)):
        ids = pair.ours.encode(text).tolist()
        known = [number for number in ids if number != pair.ours.unknown_id]
        expected = pair.theirs.decode(known, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert pair.ours.decode(ids) == expected, ascii(text)


def exported(ours: Tokenizer, folder: Path) -> Any:
    for file, value in tokenizer_files(ours, 128).items():
        (folder / file).write_text(json.dumps(value))
    return transformers.AutoTokenizer.from_pretrained(folder)


@pairs(*PUBLISHED)
def test_exported_for_transformers(pair: Pair, tmp_path: Path) -> None:
    ours, reference, exact = pair
    auto = exported(ours, tmp_path)
    assert len(auto) == ours.vocab_size
    assert_equal(pair._replace(theirs=auto), HARD)
    for text, ids in zip(HARD, auto(HARD, add_special_tokens=False)["input_ids"], strict=True):
        assert not exact or auto.decode(ids, skip_special_tokens=True) == text
    for texts in (("It was", "so much"), ("one",), ("It was <extra_id_0> much<extra_id_99>.",)):
        assert dict(auto(*texts)) == dict(reference(*texts))
    for name in ("eos", "pad", "unk", "cls", "sep", "mask"):
        assert getattr(reference, f"{name}_token_id") in (None, getattr(auto, f"{name}_token_id")), name


@pairs(trained_gpt2)
def test_a_trained_one_exported_for_transformers(pair: Pair, tmp_path: Path) -> None:
    ours, auto = pair.ours, exported(pair.ours, tmp_path)
    assert len(auto) == ours.vocab_size
    assert_equal(pair._replace(theirs=auto), HARD)
    roles, a, b = ours.special_ids.present(), ours.encode("a").tolist(), ours.encode("b").tolist()
    first, second = roles["cls"], roles["separator"]
    assert auto("a", "b")["input_ids"] == [first, *a, second, second, *b, second]
    assert (auto.eos_token_id, auto.cls_token_id) == (ours.eod_id, first)
    assert (auto.pad_token_id, auto.mask_token_id) == (roles["pad"], roles["mask"])


@pairs(t5)
def test_a_folder_of_transformers_comes_back(pair: Pair, tmp_path: Path) -> None:
    pair.theirs.save_pretrained(tmp_path / "saved")
    back, remarks = import_hf(tmp_path / "saved", tmp_path / "back")
    assert remarks == ["tokenizer.json: unknown <unk>, eod </s>, pad <pad>, 100 sentinels"]
    assert_equal(pair._replace(ours=back), HARD)
    assert back.special_ids == pair.ours.special_ids


@pairs(t5)
def test_a_model_as_released(pair: Pair, tmp_path: Path) -> None:
    """With spiece.model and 32,128 rows, of which no token has the last 28; it answers as transformers' does."""
    ours, reference, _ = pair
    torch.manual_seed(0)
    settings_of_it = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    theirs = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=32_128, decoder_start_token_id=0, **settings_of_it)
    )
    theirs.shared.weight.data[ours.vocab_size :] = 0
    theirs.save_pretrained(tmp_path / "theirs")
    shutil.copy(shared_data("t5_spiece") / "spiece.model", tmp_path / "theirs")
    remarks = foreign.import_hf(tmp_path / "theirs", tmp_path / "ours")
    assert remarks == ["rows 32100 to 32127 belong to no token id, they fill up a multiple of 128: left out"]
    loaded = load_checkpoint(tmp_path / "ours")
    assert loaded.tokenizer.special_ids == ours.special_ids
    for source in ("It was <extra_id_0> morning.", "A caf\u00e9,  \u201cyes\u201d<extra_id_99>"):
        ids = reference(source, return_tensors="pt").input_ids
        found = theirs.eval().generate(ids, max_new_tokens=8, do_sample=False)[0, 1:].tolist()
        assert answer(loaded, source, Sampling(tokens=8, temperature=0)) == decode_sentinels(loaded.tokenizer, found)
