"""What an import from transformers accepts and what it names when it refuses, without transformers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from gpt1_ds.common.errors import CheckpointError, UserError
from gpt1_ds.config import ModelConfig, load
from gpt1_ds.data.tokenizers import json_sections
from gpt1_ds.data.tokenizers.base import METADATA
from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.interop import hf_export, hf_import, hf_weights, imported
from gpt1_ds.interop.families.openai_gpt import FAMILY
from gpt1_ds.interop.families.rules import Facts
from gpt1_ds.interop.hf_config import GENERATION
from tests.helpers.foreign import SMALL, encoder_tokenizers, import_hf, make_checkpoint, master, random_weights
from tests.helpers.served import SENTENCE

ROBERTA = replace(
    SMALL, mask="bidirectional", embedding_norm=True, head="masked", activation="gelu", embedding_dropout=0.2
)
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def exported(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    make_checkpoint(folder / "checkpoint", tiny_data.parent / "tokenizer")
    hf_export.export(folder / "checkpoint", folder / "exported")
    return folder / "exported"


@pytest.fixture
def source(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "source"))


def rewrite(source: Path, change: Callable[[Tensors], Tensors]) -> None:
    path = source / hf_weights.WEIGHTS
    safetensors.torch.save_file(change(safetensors.torch.load_file(path)), path, metadata={"format": "pt"})


def configure(source: Path, **values: Any) -> None:
    path = source / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def tokens_of(checkpoint: Path) -> torch.Tensor:
    return master(checkpoint, "tokens.weight")


def write_texts(source: Path, **values: Any) -> None:
    path = source / GENERATION
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def assert_refused(source: Path, tmp_path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        import_hf(source, tmp_path / "out")
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*")), "nothing is left behind"


def test_the_card_says_what_stands_before_an_answer(exported: Path) -> None:
    """A source of a fine-tuned model ends with the end of a document, which their tokenizer does not add."""
    card = " ".join((exported / "README.md").read_text().split())
    assert "and so does the answer to a source, if the model was fine-tuned to write one; nothing adds it" in card


def test_every_parameter_goes_there_and_back() -> None:
    for name, value in random_weights(SMALL, 50).items():
        theirs = FAMILY.to_theirs(name, value, Facts(SMALL.heads))
        assert all(part.is_contiguous() for part in theirs.values())
        assert torch.equal(FAMILY.from_theirs(name, theirs, Facts(SMALL.heads)), value), name


def test_queries_keys_and_values_are_thirds() -> None:
    """Head n's query rows are rows 3 H n .. of ours and columns H n .. of theirs."""
    ours = torch.arange(24.0).view(24, 1).expand(24, 8)  # 2 heads of width 4
    (theirs,) = FAMILY.to_theirs("blocks.0.attention.qkv.weight", ours, Facts(2)).values()
    assert theirs.shape == (8, 24)
    assert theirs[0].tolist() == [
        *range(4),
        *range(12, 16),
        *range(4, 8),
        *range(16, 20),
        *range(8, 12),
        *range(20, 24),
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {name.removeprefix("transformer."): value for name, value in t.items()},
        lambda t: {**t, "lm_head.weight": t["transformer.tokens_embed.weight"].clone()},
        lambda t: {n.replace("transformer.tokens_embed", "lm_head"): value for n, value in t.items()},
        lambda t: {**t, "transformer.h.0.attn.bias": torch.ones(1, 1, 48, 48, dtype=torch.uint8)},
        lambda t: {**t, "transformer.position_ids": torch.arange(48)},
    ],
    ids=["without-prefix", "head-too", "head-only", "mask-buffer", "position-buffer"],
)
def test_ways_to_save_the_same_model(change: Callable[[Tensors], Tensors], source: Path, tmp_path: Path) -> None:
    wanted = safetensors.torch.load_file(source / hf_weights.WEIGHTS)["transformer.tokens_embed.weight"].clone()
    rewrite(source, change)
    assert import_hf(source, tmp_path / "out") == []
    assert torch.equal(tokens_of(tmp_path / "out"), wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: {**t, "score.weight": torch.zeros(2, 32)},
            "of models with a head, OpenAIGPTForSequenceClass",
        ),
        (lambda t: {**t, "score.bias": torch.zeros(2)}, "'score.bias' is no part of GPT-1"),
        (lambda t: {**t, "a\nb": torch.zeros(1)}, r"'a\\nb' is no part of GPT-1"),
        (lambda t: {n: v for n, v in t.items() if "h.1.mlp.c_fc.bias" not in n}, "has no h.1.mlp.c_fc.bias"),
        (lambda t: {n: v for n, v in t.items() if "h.1." not in n}, r"has no h.1.* \(and 11 more"),
        (lambda t: {**t, "lm_head.weight": torch.zeros(500, 32)}, "lm_head.weight differs from tokens_embed.weight"),
        (lambda t: {**t, "lm_head.weight": torch.zeros(4, 32)}, "is not tied"),
        (lambda t: {**t, "tokens_embed.weight": torch.zeros(500, 32)}, "is there twice"),
        (lambda t: {n: v.T.contiguous() if "c_fc.w" in n else v for n, v in t.items()}, "the configuration says"),
        (lambda t: {n: v.double() for n, v in t.items()}, "weights must be F32"),
        (lambda t: {n: v * torch.nan for n, v in t.items()}, "not finite"),
    ],
)
def test_weights_that_are_not_gpt1s(
    change: Callable[[Tensors], Tensors], message: str, source: Path, tmp_path: Path
) -> None:
    rewrite(source, change)
    assert_refused(source, tmp_path, message)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "gptj"}, "model_type 'gptj' is not known here; openai-gpt or gpt2 or roberta or bert or t5 is"),
        ({"model_type": ["gpt2"]}, r"model_type \['gpt2'\] is not known here"),
        ({"afn": "relu"}, "afn 'relu' is not GPT-1's; gelu or gelu_new is"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon 1e-06"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is off"),
        ({"n_layer": 10**12}, "n_layer 1000000000000 is not a whole number from 1 to 1024"),
        ({"n_embd": -32}, "n_embd -32"),
        ({"n_head": "4"}, "n_head '4'"),
        ({"n_head": True}, "n_head True"),
        ({"n_head": 5}, "model.heads=5 does not divide model.width=32"),
        ({"n_ctx": 64}, "n_positions 48 and n_ctx 64 differ"),
        ({"vocab_size": 499}, r"tokens_embed.weight is \[500, 32\], the configuration says \[499, 32\]"),
        ({"resid_pdrop": 1.5}, "residual_dropout=1.5"),
        ({"resid_pdrop": "0.1"}, "resid_pdrop '0.1' is not a number"),
        ({"padding": "x" * 2_000_000}, "too large for this file"),
    ],
)
def test_configurations_that_are_not_gpt1s(values: dict[str, Any], message: str, source: Path, tmp_path: Path) -> None:
    configure(source, **values)
    assert_refused(source, tmp_path, message)


def test_what_a_configuration_carries(source: Path, tmp_path: Path) -> None:
    configure(source, resid_pdrop=0, embd_pdrop=0.3, attn_pdrop=0.4, afn="gelu_new", n_ctx=48)
    model = hf_import.read(source, None, tmp_path)[0].model
    dropouts = {"residual_dropout": 0.0, "embedding_dropout": 0.3, "attention_dropout": 0.4}
    assert model == ModelConfig(layers=2, width=32, heads=4, context=48, vocab_size=500, **dropouts)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (
            {"num_beams": 1, "length_penalty": 1.0, "do_sample": False, "max_length": 20, "forced_bos_token_id": None},
            [],
        ),
        ({"suppress_tokens": None, "eos_token_id": None, "bos_token_id": 3, "use_cache": True}, []),
        (
            {"num_beams": 4, "length_penalty": 0.6, "no_repeat_ngram_size": 3},
            ["says how texts are written (num_beams 4, length_penalty 0.6, no_repeat_ngram_size 3): left out"],
        ),
        ({"suppress_tokens": [7]}, ["says how texts are written (suppress_tokens [7]): left out"]),
        ({"eos_token_id": [7, 9, 10**6]}, ["ends a text with one of the ids [7, 9]: left out"]),
        ({"eos_token_id": 10**6}, []),
    ],
)
def test_ways_to_write_that_are_left_out_are_named(
    values: dict[str, Any], wanted: list[str], source: Path, tmp_path: Path
) -> None:
    write_texts(source, **values)
    told = [line.partition(", `sample`")[0].partition(", here")[0] for line in import_hf(source, tmp_path / "out")]
    assert told == [f"generation_config.json {line}" for line in wanted]


def test_a_decoder_that_begins_elsewhere_when_it_writes_is_refused(span_data: Path, tmp_path: Path) -> None:
    """Without the name of the folder where a tokenizer is made, which is gone afterwards."""
    sizes = ["model.layers=1", "model.width=32", "model.heads=4", "model.head_width=8", "model.ffn=64"]
    model = replace(load(["model/t5_base"], sizes).model, vocab_size=None)
    make_checkpoint(tmp_path / "ours", span_data.parent / "tokenizer", model)
    hf_export.export(tmp_path / "ours", tmp_path / "theirs")
    write_texts(tmp_path / "theirs", decoder_start_token_id=7)
    message = f"{GENERATION}: decoder_start_token_id 7: a decoder begins with the padding symbol here, which is"
    assert_refused(tmp_path / "theirs", tmp_path, rf"{message} \d+ of the tokenizer; pass")


def test_positions_counted_by_another_padding_symbol_are_refused(tmp_path: Path) -> None:
    """RoBERTa's begin again at every token that is its padding."""
    tokenizer = encoder_tokenizers(tmp_path)["roberta"]
    make_checkpoint(tmp_path / "ours", tokenizer, ROBERTA)
    hf_export.export(tmp_path / "ours", tmp_path / "theirs")
    pad = json.loads((tmp_path / "theirs" / "config.json").read_text())["pad_token_id"]
    import_hf(tmp_path / "theirs", tmp_path / "back")
    configure(tmp_path / "theirs", pad_token_id=pad + 1)
    assert_refused(
        tmp_path / "theirs", tmp_path, f"pad_token_id {pad + 1}: positions .* padding symbol is {pad} of the"
    )


def test_older_folders_say_it_in_their_configuration(source: Path, tmp_path: Path) -> None:
    (source / GENERATION).unlink()
    configure(source, num_beams=4, task_specific_params={"summarization": {"num_beams": 2}})
    (told,) = import_hf(source, tmp_path / "out")
    assert told.startswith("config.json says how texts are written (num_beams 4): left out")


def test_what_their_tokenizer_puts_around_a_text_is_told(tmp_path: Path) -> None:
    """Nothing stands around a prompt here."""
    (tmp_path / "text.txt").write_text(f"{SENTENCE}\n" * 40)
    end = train_tokenizer([tmp_path / "text.txt"], tmp_path / "tok", 280, model="gpt2-bpe").eod_id
    make_checkpoint(tmp_path / "ours", tmp_path / "tok", replace(SMALL, norm="pre", init="residual"))
    hf_export.export(tmp_path / "ours", tmp_path / "theirs")
    shutil.rmtree(tmp_path / "theirs" / hf_export.TOKENIZER)
    assert import_hf(tmp_path / "theirs", tmp_path / "plain") == []
    path = tmp_path / "theirs" / "tokenizer.json"
    contents = json.loads(path.read_text())
    (name,) = (token["content"] for token in contents["added_tokens"] if token["id"] == end)
    both = [(name, 0), ("A", 0), ("B", 0)]
    contents["post_processor"] = json_sections.template(both[:2], both, {name: end})
    path.write_text(json.dumps(contents))
    (told,) = import_hf(tmp_path / "theirs", tmp_path / "out")
    assert told == (
        f"its tokenizer puts [{end}] before a text and nothing after it, here there is nothing before it and nothing "
        "after it"
    )


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", f"{hf_export.TOKENIZER}/tokenizer.model"])
def test_links_out_of_the_folder_are_refused(name: str, source: Path, tmp_path: Path) -> None:
    (source / name).rename(tmp_path / "elsewhere")
    (source / name).symlink_to(tmp_path / "elsewhere")
    assert_refused(source, tmp_path, "outside the folder; copy the files themselves")


def test_a_linked_tokenizer_folder_is_refused(source: Path, tmp_path: Path) -> None:
    (source / hf_export.TOKENIZER).rename(tmp_path / "elsewhere")
    (source / hf_export.TOKENIZER).symlink_to(tmp_path / "elsewhere")
    assert_refused(source, tmp_path, "carries neither a tokenizer of ours nor vocab.json and")


def test_only_the_tokenizers_own_files_are_taken(source: Path, tmp_path: Path) -> None:
    (source / hf_export.TOKENIZER / "extra").symlink_to("/etc/hostname")
    import_hf(source, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out" / "tokenizer")) == [METADATA, "tokenizer.model"]


def shard(source: Path) -> dict[str, str]:
    tensors = safetensors.torch.load_file(source / hf_weights.WEIGHTS)
    (source / hf_weights.WEIGHTS).unlink()
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(sorted(tensors))}
    for file in set(places.values()):
        safetensors.torch.save_file({n: t for n, t in tensors.items() if places[n] == file}, source / file)
    return places


def write_index(source: Path, places: Any) -> None:
    (source / hf_weights.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_shards_are_read(source: Path, tmp_path: Path) -> None:
    wanted = safetensors.torch.load_file(source / hf_weights.WEIGHTS)["transformer.tokens_embed.weight"]
    write_index(source, shard(source))
    import_hf(source, tmp_path / "out")
    assert torch.equal(tokens_of(tmp_path / "out"), wanted)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("../secret.safetensors", "outside the folder"),
        ("/etc/passwd", "outside the folder"),
        ("missing.safetensors", "no such file"),
        ("model-0.bin", "never opened"),
        ("model-1.safetensors", "disagree on"),
        (3, "no weight_map"),
    ],
)
def test_an_index_that_lies(file: Any, message: str, source: Path, tmp_path: Path) -> None:
    places = shard(source)
    (source / "model-0.bin").write_bytes(b"\x80\x02.")
    write_index(source, {**places, min(places): file})
    assert_refused(source, tmp_path, message)


def test_a_folder_without_weights(source: Path, tmp_path: Path) -> None:
    (source / hf_weights.WEIGHTS).unlink()
    assert_refused(source, tmp_path, "holds neither model.safetensors nor")
    assert_refused(tmp_path / "nothing", tmp_path, "not a folder; --source names")


def test_a_pickle_beside_safetensors_is_not_looked_at(source: Path, tmp_path: Path) -> None:
    (source / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    import_hf(source, tmp_path / "out")
    assert (tmp_path / "out" / "manifest.json").is_file()
    assert not list((tmp_path / "out").rglob("*.bin"))


def resize(source: Path, rows: int) -> None:
    def change(tensors: Tensors) -> Tensors:
        name = "transformer.tokens_embed.weight"
        return {**tensors, name: torch.cat([tensors[name], torch.zeros(32, 32)])[:rows].contiguous()}

    rewrite(source, change)
    configure(source, vocab_size=rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            400,
            r"rows for 400 token ids, the tokenizer gives text ids up to 499; pass --tokenizer .* \(resize_token_emb",
        ),
    ],
)
def test_vocabularies_that_do_not_fit(rows: int, message: str, source: Path, tmp_path: Path) -> None:
    resize(source, rows)
    assert_refused(source, tmp_path, message)


def test_a_model_that_transformers_cannot_express(tiny_data: Path, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c", tiny_data.parent / "tokenizer", replace(SMALL, ffn=96))
    with pytest.raises(CheckpointError, match=r"model.ffn=96: .* only 4 \* model.width = 128"):
        hf_export.export(tmp_path / "c", tmp_path / "out")


def test_a_place_that_is_taken(source: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(CheckpointError, match="is there already and not empty"):
        imported.free_place(tmp_path / "taken")
    with pytest.raises(CheckpointError, match="such names are for the checkpoints of runs"):
        imported.free_place(tmp_path / "step-00000007")
    (tmp_path / "empty").mkdir()
    assert imported.free_place(tmp_path / "empty") == tmp_path / "empty"
