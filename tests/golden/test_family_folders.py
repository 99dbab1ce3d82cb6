"""GPT-1, GPT-2, BERT and RoBERTa to transformers and back: the same logits, the same bytes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from gpt1_ds.architecture.head import NEXT_SENTENCE, HeadSpec
from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig, load
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.interop import hf_export, hf_weights
from tests.helpers.foreign import SMALL, import_hf, make_checkpoint, master
from tests.helpers.shared_data import shared_data
from tests.helpers.theirs import BERT, GPT2, ROBERTA, batch, theirs_of

MODELS: dict[str, tuple[ModelConfig, HeadSpec | None]] = {
    "OpenAIGPTLMHeadModel": (SMALL, None),
    "GPT2LMHeadModel": (GPT2, None),
    "BertForMaskedLM": (BERT, None),
    "BertForPreTraining": (BERT, NEXT_SENTENCE),
    "RobertaForMaskedLM": (ROBERTA, None),
}


@pytest.fixture(scope="module")
def folders(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Class -> (checkpoint, export)."""
    made, root = {}, tmp_path_factory.mktemp("families")
    for name, (model, head) in MODELS.items():
        checkpoint = make_checkpoint(root / f"{name}-ours", tokenizer, model, head=head)
        hf_export.export(checkpoint, root / name)
        made[name] = checkpoint, root / name
    return made


@pytest.mark.parametrize("name", list(MODELS))
def test_logits_of_an_export_are_ours(name: str, folders: dict[str, tuple[Path, Path]]) -> None:
    checkpoint, exported = folders[name]
    theirs, ours, rows = theirs_of(exported, name), load_checkpoint(checkpoint).model, batch()
    inputs = rows.theirs(segments="Bert" in name)
    inputs["input_ids"] = torch.where(rows.is_real, rows.tokens_BS, theirs.config.pad_token_id or 0)
    with torch.no_grad():
        output = theirs(**inputs)
        wanted_BSV = output.get("logits", output.get("prediction_logits"))
        found_BSV = ours.logits(*rows.ours()).transpose(0, 1)[..., :500]
    assert wanted_BSV.abs().max() > 3, "the logits are far from zero"
    assert (found_BSV - wanted_BSV)[rows.is_real].abs().max() <= 1e-5
    if MODELS[name][1] is not None:
        scores = ours.scores(rows.ours()[0], torch.zeros(2, dtype=torch.int64), rows.ours()[1])
        assert (scores - output.seq_relationship_logits).abs().max() <= 1e-5


@pytest.mark.parametrize("name", list(MODELS))
def test_a_round_trip_keeps_every_bit(name: str, folders: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    checkpoint, exported = folders[name]
    remarks = import_hf(exported, tmp_path / "back")
    assert remarks == (["has no pooler: fine-tuning begins with a new one"] if name == "BertForMaskedLM" else [])
    for parameter in StateReader(checkpoint).index:
        ours, back = master(checkpoint, parameter), master(tmp_path / "back", parameter)
        assert torch.equal(ours.view(torch.int32), back.view(torch.int32)), parameter
    before, after = manifest.read(checkpoint), manifest.read(tmp_path / "back")
    for key in ("parameters", "probe", "head"):
        assert before.get(key) == after.get(key), key
    assert before["hashes"]["tokenizer"] == after["hashes"]["tokenizer"]
    first, second = (load_checkpoint(folder).config for folder in (checkpoint, tmp_path / "back"))
    assert replace(first.model, init="normal") == replace(second.model, init="normal")
    assert (first.objective, first.data) == (second.objective, second.data)


@pytest.mark.parametrize("name", list(MODELS))
def test_what_they_save_comes_back(
    name: str, folders: dict[str, tuple[Path, Path]], tokenizer: Path, tmp_path: Path
) -> None:
    """Tied weights under either name, and the fields that transformers adds to config.json."""
    checkpoint, exported = folders[name]
    theirs_of(exported, name).save_pretrained(tmp_path / "theirs")
    import_hf(tmp_path / "theirs", tmp_path / "back", tokenizer)
    assert manifest.read(checkpoint)["parameters"] == manifest.read(tmp_path / "back")["parameters"]


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "BertForPreTraining", "RobertaForMaskedLM"])
def test_a_folder_as_it_was_published(name: str, tmp_path: Path) -> None:
    """With the files of its tokenizer, which a fill or a text then needs."""
    source, settings = tmp_path / "source", {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    source.mkdir()
    if name == "BertForPreTraining":
        shutil.copy(shared_data("bert_wordpiece") / "vocab.txt", source)
        config = transformers.BertConfig(**settings, intermediate_size=32, max_position_embeddings=16)
    else:
        bpe = shared_data("gpt2_bpe")
        vocabulary = json.loads((bpe / "encoder.json").read_text())
        if name == "RobertaForMaskedLM":  # its own ids of the same pieces
            symbols = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
            pieces = {piece: number + 4 for piece, number in vocabulary.items() if piece != "<|endoftext|>"}
            vocabulary = {**symbols, **pieces, "<mask>": len(pieces) + 4}
            sizes = {"vocab_size": len(vocabulary), "max_position_embeddings": 18, "type_vocab_size": 1}
            config = transformers.RobertaConfig(**settings, **sizes, intermediate_size=32)
        else:
            config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=16)
        (source / "vocab.json").write_text(json.dumps(vocabulary))
        shutil.copy(bpe / "vocab.bpe", source / "merges.txt")
    theirs = getattr(transformers, name)(config).eval()
    theirs.save_pretrained(source)
    import_hf(source, tmp_path / "out")
    loaded = load_checkpoint(tmp_path / "out")
    assert loaded.tokenizer.vocab_size == config.vocab_size
    hf_export.export(tmp_path / "out", tmp_path / "again")
    exported = json.loads((tmp_path / "again" / "config.json").read_text())
    assert exported["architectures"] == [name]
    assert exported.get("pad_token_id") == (None if "GPT2" in name else config.pad_token_id)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    inputs = auto("It was read by many.", return_tensors="pt")
    with torch.no_grad():
        wanted, found = theirs(**inputs)[0], theirs_of(tmp_path / "again", name)(**inputs)[0]
    torch.testing.assert_close(wanted, found, rtol=0, atol=1e-6)  # RoBERTa's segment is added in another order


def rewrite(exported: Path, source: Path, change: Any, **settings: Any) -> Path:
    source.mkdir()
    tensors = change(safetensors.torch.load_file(exported / hf_weights.WEIGHTS))
    safetensors.torch.save_file(tensors, source / hf_weights.WEIGHTS, metadata={"format": "pt"})
    values = json.loads((exported / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**values, **settings}))
    return source


def test_old_names_and_copies_of_bert(folders: dict[str, tuple[Path, Path]], tokenizer: Path, tmp_path: Path) -> None:
    checkpoint, exported = folders["BertForPreTraining"]

    def old(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
        tensors["bert.embeddings.position_ids"] = torch.arange(48)
        ends = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        return {n.replace(e, o): v for n, v in tensors.items() for e, o in [_end(n, ends)]}

    import_hf(rewrite(exported, tmp_path / "old", old), tmp_path / "back", tokenizer)
    assert manifest.read(checkpoint)["parameters"] == manifest.read(tmp_path / "back")["parameters"]

    def differing(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**tensors, "cls.predictions.decoder.bias": tensors["cls.predictions.bias"] + 1}

    with pytest.raises(CheckpointError, match=r"decoder.bias differs from .*; in BERT they are one"):
        import_hf(rewrite(exported, tmp_path / "differ", differing), tmp_path / "no", tokenizer)


def _end(name: str, ends: dict[str, str]) -> tuple[str, str]:
    return next(((end, old) for end, old in ends.items() if name.endswith(end)), (name, name))


def test_the_base_model_suffices(folders: dict[str, tuple[Path, Path]], tokenizer: Path, tmp_path: Path) -> None:
    """BertModel's names have no prefix; what it lacks is drawn."""
    checkpoint, exported = folders["BertForPreTraining"]
    bert = theirs_of(exported, "BertForPreTraining").bert
    bert.save_pretrained(tmp_path / "base")
    remarks = import_hf(tmp_path / "base", tmp_path / "back", tokenizer)
    assert [remark.split(":")[0] for remark in remarks] == [
        "has no masked.dense.weight, masked.dense.bias, masked.norm.weight, masked.norm.bias, masked.bias",
        "has no next_sentence.weight, next_sentence.bias",
    ]
    before, after = (manifest.read(folder)["parameters"] for folder in (checkpoint, tmp_path / "back"))
    same = {name for name in before if before[name] == after[name]}
    assert {name for name in before if not name.startswith(("masked.", "next_sentence."))} <= same


def test_robertas_only_segment_is_part_of_its_positions(
    folders: dict[str, tuple[Path, Path]], tokenizer: Path, tmp_path: Path
) -> None:
    checkpoint, exported = folders["RobertaForMaskedLM"]
    name = "roberta.embeddings.token_type_embeddings.weight"
    row_1D = torch.linspace(-1, 1, 32)[None]
    source = rewrite(exported, tmp_path / "source", lambda tensors: {**tensors, name: row_1D})
    import_hf(source, tmp_path / "back", tokenizer)
    assert torch.equal(master(tmp_path / "back", "positions.weight"), master(checkpoint, "positions.weight") + row_1D)
    rows = batch()
    with torch.no_grad():
        wanted = theirs_of(source, "RobertaForMaskedLM")(input_ids=rows.tokens_BS).logits
        found = load_checkpoint(tmp_path / "back").model.logits(rows.tokens_BS.T)[..., :500].transpose(0, 1)
    assert (found - wanted).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is on"),
        ("GPT2LMHeadModel", {"scale_attn_weights": False}, "scale_attn_weights is off; GPT-2's is on"),
        ("GPT2LMHeadModel", {"activation_function": "relu"}, "activation_function 'relu' is not GPT-2's"),
        ("GPT2LMHeadModel", {"n_inner": -1}, "n_inner -1 is not a whole number"),
        ("BertForMaskedLM", {"position_embedding_type": "relative_key"}, "'relative_key' is not BERT's, absolute"),
        ("BertForMaskedLM", {"is_decoder": True}, "is_decoder is on; BERT's is off"),
        ("BertForMaskedLM", {"type_vocab_size": 3}, "type_vocab_size 3 is not BERT's, 2"),
        ("BertForMaskedLM", {"layer_norm_eps": 0}, "norm_eps=0.0 must be in"),
        ("RobertaForMaskedLM", {"hidden_act": "gelu_new"}, "hidden_act 'gelu_new' is not RoBERTa's, gelu"),
        ("RobertaForMaskedLM", {"pad_token_id": -1}, "pad_token_id -1 is not a whole number from 0"),
        ("RobertaForMaskedLM", {"max_position_embeddings": 1}, "model.context=0 is too small"),
    ],
)
def test_what_is_not_the_family_is_refused(
    name: str,
    settings: dict[str, Any],
    message: str,
    folders: dict[str, tuple[Path, Path]],
    tokenizer: Path,
    tmp_path: Path,
) -> None:
    source = rewrite(folders[name][1], tmp_path / "source", lambda tensors: tensors, **settings)
    with pytest.raises(CheckpointError, match=message) as caught:
        import_hf(source, tmp_path / "out", tokenizer)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (replace(SMALL, norm_eps=1e-6), "model.norm_eps=1e-06: transformers' OpenAIGPT knows only 1e-05"),
        (replace(SMALL, activation="gelu"), "model.activation=gelu: transformers' OpenAIGPT knows only gelu_tanh"),
        (replace(GPT2, embedding_norm=True), "model.embedding_norm=True: transformers' GPT2 knows only False"),
        (replace(BERT, norm="pre"), "model.norm=pre: transformers' Bert knows only post"),
        (replace(ROBERTA, activation="gelu_tanh"), "model.activation=gelu_tanh: transformers' Roberta knows only gelu"),
        (replace(ROBERTA, head="plain"), "model.head=plain: transformers' Roberta knows only masked"),
    ],
)
def test_a_model_that_no_family_has(model: ModelConfig, message: str, tokenizer: Path, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c", tokenizer, model)
    with pytest.raises(CheckpointError, match=message):
        hf_export.export(tmp_path / "c", tmp_path / "out")


T5 = ["model.layers=1", "model.width=32", "model.heads=4", "model.ffn_dropout=0"]


@pytest.mark.parametrize(
    ("model", "key", "theirs", "rate"),
    [
        (replace(SMALL, ffn_dropout=0.3), "ffn_dropout", "", 0.0),
        (replace(BERT, embedding_dropout=0.0), "embedding_dropout", "hidden_dropout_prob", BERT.residual_dropout),
        (load(["model/t5_small"], T5).model, "ffn_dropout", "dropout_rate", 0.1),
    ],
)
def test_dropout_that_a_family_cannot_hold_is_said(
    model: ModelConfig,
    key: str,
    theirs: str,
    rate: float,
    tokenizer: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was refused, though what a model computes does not depend on it: of T5 fine-tuned by default, for example."""
    make_checkpoint(tmp_path / "c", tokenizer, model)
    capsys.readouterr()
    hf_export.export(tmp_path / "c", tmp_path / "out")
    (line,) = capsys.readouterr().err.splitlines()
    assert f"cannot hold model.{key}={getattr(model, key):g}; where it is trained there, that is {rate:g}; " in line
    assert json.loads((tmp_path / "out" / "config.json").read_text()).get(theirs, 0.0) == rate
