"""T5 and T5 1.1 to transformers and back: the same greedy text, the same ids, the same bytes."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.common.errors import ArgumentError, CheckpointError, ConfigError
from gpt1_ds.config import load
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.evaluation.generate import answer, decode_sentinels, encode_sentinels, generate
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.interop import hf_export
from tests.helpers.foreign import import_hf, make_checkpoint, master
from tests.helpers.hard_texts import HARD, SYMBOLS

SMALL = ["model.layers=2", "model.width=48", "model.heads=4", "model.head_width=16", "model.ffn=96", "model.context=64"]
WORDS = ["a", "list", "of", "names", "is", "returned", "when", "module", "no", "object", "with", "two", "or", "error"]
# transformers' caches have no place for a decoder that is deeper than its encoder
PRESETS = {"t5_base": ["model.decoder_layers=1"], "t5_v1_1_base": []}


@pytest.fixture(scope="module", params=list(PRESETS))
def folders(request: pytest.FixtureRequest, span_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """(checkpoint, export)"""
    root = tmp_path_factory.mktemp(request.param)
    model = load([f"model/{request.param}"], [*SMALL, *PRESETS[request.param]]).model
    # the weights of seed 0 repeat one byte in most answers
    checkpoint = make_checkpoint(root / "ours", span_data.parent / "tokenizer", replace(model, vocab_size=None), seed=1)
    hf_export.export(checkpoint, root / "theirs")
    return [checkpoint, root / "theirs"]


def test_twenty_answers_are_theirs(folders: list[Path]) -> None:
    checkpoint, exported = folders
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(exported)
    spelled = transformers.AutoTokenizer.from_pretrained(exported)
    loaded, written = load_checkpoint(checkpoint), []
    draw = random.Random(0)
    for number in range(20):
        words = " ".join(draw.choices(WORDS, k=1 + number // 2))  # sources that differ by more than a number
        source = f"{words} {number} <extra_id_0> is a list. It returns {'x' * number}<extra_id_1>."
        ids = spelled(source, return_tensors="pt").input_ids
        found = theirs.generate(ids, max_new_tokens=24, do_sample=False)[0, 1:].tolist()
        end = found.index(loaded.tokenizer.eod_id) if loaded.tokenizer.eod_id in found else len(found)
        written.append(answer(loaded, source, Sampling(tokens=24, temperature=0)))
        assert written[-1] == decode_sentinels(loaded.tokenizer, found[:end]), source
    assert len(set(written)) >= 15, "the answers depend on their sources"


def test_a_decoder_that_is_deeper_than_its_encoder_writes(span_data: Path, tmp_path: Path) -> None:
    """transformers' caches have no place for it, so the export says that none are used."""
    model = load(["model/t5_base"], [*SMALL, "model.layers=1", "model.decoder_layers=2"]).model
    tokenizer = span_data.parent / "tokenizer"
    checkpoint = make_checkpoint(tmp_path / "ours", tokenizer, replace(model, vocab_size=None), seed=1)
    hf_export.export(checkpoint, tmp_path / "theirs")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "theirs")
    loaded = load_checkpoint(checkpoint)
    source = "a list of names <extra_id_0> is returned."
    ids = torch.tensor([[*encode_sentinels(loaded.tokenizer, source), loaded.tokenizer.eod_id]])
    found = theirs.generate(ids, max_new_tokens=8, do_sample=False)[0, 1:].tolist()
    assert decode_sentinels(loaded.tokenizer, found) == answer(loaded, source, Sampling(tokens=8, temperature=0))


def test_their_tokenizer_has_our_ids(folders: list[Path]) -> None:
    spelled = transformers.AutoTokenizer.from_pretrained(folders[1])
    ours = load_tokenizer(folders[0] / "tokenizer")
    for text in [*HARD, " two  blanks ", "a<extra_id_0>b<extra_id_19>"]:
        if text == SYMBOLS:
            continue  # a sentinel in a text is that symbol for transformers, and so are the others
        assert spelled(text).input_ids == [*encode_sentinels(ours, text), ours.eod_id], repr(text)
        ids = ours.encode(text)
        assert ours.decode(ids) == text


def test_a_round_trip_keeps_every_bit(folders: list[Path], tmp_path: Path) -> None:
    checkpoint, exported = folders
    assert import_hf(exported, tmp_path / "back") == []
    for parameter in StateReader(checkpoint).index:
        ours, back = master(checkpoint, parameter), master(tmp_path / "back", parameter)
        assert torch.equal(ours.view(torch.int32), back.view(torch.int32)), parameter
    hf_export.export(tmp_path / "back", tmp_path / "again")
    for name in ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (exported / name).read_bytes(), name


def test_what_they_save_comes_back(folders: list[Path], tmp_path: Path) -> None:
    """In shards, and with the names that they tie."""
    checkpoint, exported = folders
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(exported)
    theirs.save_pretrained(tmp_path / "saved", max_shard_size="50KB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 1
    shutil.copytree(exported / hf_export.TOKENIZER, tmp_path / "saved" / hf_export.TOKENIZER)
    import_hf(tmp_path / "saved", tmp_path / "back")
    for parameter in StateReader(checkpoint).index:
        assert torch.equal(master(checkpoint, parameter), master(tmp_path / "back", parameter)), parameter


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("relative_attention_num_buckets", 64, "relative_attention_num_buckets 64 is not T5's, 32"),
        ("feed_forward_proj", "gated-silu", "feed_forward_proj 'gated-silu' is not T5's"),
        ("num_layers", 7, "has no encoder.block.2."),
        ("decoder_start_token_id", 1, "decoder_start_token_id 1: a decoder begins with the padding symbol here"),
    ],
)
def test_another_model_is_refused(key: str, value: object, words: str, folders: list[Path], tmp_path: Path) -> None:
    shutil.copytree(folders[1], tmp_path / "other")
    path = tmp_path / "other" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(CheckpointError) as caught:
        import_hf(tmp_path / "other", tmp_path / "back")
    assert words.split("'")[0] in str(caught.value)


def test_shared_stacks_are_refused(span_data: Path, tmp_path: Path) -> None:
    model = load(["model/t5_base"], [*SMALL, "model.shared=true"]).model
    checkpoint = make_checkpoint(tmp_path / "ours", span_data.parent / "tokenizer", replace(model, vocab_size=None))
    with pytest.raises(CheckpointError, match=r"model\.shared=True"):
        hf_export.export(checkpoint, tmp_path / "theirs")


def test_what_an_encoder_decoder_does_not_do(folders: list[Path]) -> None:
    loaded = load_checkpoint(folders[0])
    with pytest.raises(ConfigError, match="which answers a source; use --source"):
        generate(loaded, "It was", Sampling(tokens=5))
    with pytest.raises(ArgumentError, match=r"has 20 sentinels, no .*77"):
        answer(loaded, "It was <extra_id_77>", Sampling(tokens=5))
    with pytest.raises(ArgumentError, match=r"^tokens=64 is too many"):
        answer(loaded, "It was", Sampling(tokens=64))
    assert answer(loaded, "It was", Sampling(temperature=0)) == answer(loaded, "It was", Sampling(63, 0)), "what fits"
    with pytest.raises(ArgumentError, match=r"^source has .* the encoder reads model\.context=64"):
        answer(loaded, "word " * 100, Sampling(tokens=5))
