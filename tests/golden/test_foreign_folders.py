"""Folders that transformers and sentence-transformers write: ids, logits and vectors are theirs, or one line says why
not. Nothing means something else here without a word.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import sentence_transformers as st
import tokenizers
import torch
import transformers
from sentence_transformers.sentence_transformer import modules
from tokenizers import AddedToken

from gpt1_ds.common.errors import UserError
from gpt1_ds.data.tokenizers import imports
from gpt1_ds.data.tokenizers.json_sections import BYTE_LETTERS
from gpt1_ds.evaluation.embed import Embedder, normalised
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.interop import hf_export
from tests.helpers.foreign import import_hf
from tests.helpers.served import predictor_of
from tests.unit.data.tokenizers.t5_files import spiece_model
from tests.unit.data.tokenizers.test_tokenizer_json import llama, unigram, wordlevel

Make = Callable[[Path], None]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = [*map(chr, range(ord("a"), ord("z") + 1)), *"ABÜüé\u0131漢字東,.'!0123456789"]
WORDS = ["ab", "##ab", "caf", "##é", "über", "uber", "covid", "##19", "漢字", "user"]
BERT = {p: n for n, p in enumerate(dict.fromkeys([*SPECIAL, *WORDS, *CHARACTERS, *(f"##{c}" for c in CHARACTERS)]))}
PIECES = [*BYTE_LETTERS.values(), "ab", "Ġab", "Ġa", "ĠĠ", "ĠĠĠĠ"]
MERGES = [("a", "b"), ("Ġ", "ab"), ("Ġ", "a"), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ")]
GPT2 = {piece: number for number, piece in enumerate([*PIECES, "<|endoftext|>"])}
ROBERTA = {piece: number for number, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *PIECES, "<mask>"])}
TEXTS = [
    "",
    " ",
    "ab  AB\n\nab\tab    ab",
    "über Übermut café CAFE\u0301 \u0131 İ",
    "東京漢字ab漢字 東",
    "covid19 COVID19 xcovid19y, covid19! <user>hi <user> x  <user>\n",
    "          ten blanks\n        and eight   three  two one",
    "don't 'S 12th 3.14 \u2581 \x00\x7f \ufeff \u200d\u3000\U0001f600",
    "a" * 120 + " " + "ab" * 60,
]


@dataclass(frozen=True)
class Case:
    """`make` writes a folder; what comes of it is compared with the library's, or is refused with these words."""

    make: Make
    compare: Callable[[Path, Path], None]
    refused: str | None = None


def write(folder: Path, **files: Any) -> None:
    """`vocab_json` is the file `vocab.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        path = folder / ".".join(name.rsplit("_", 1))
        if isinstance(value, bytes):
            path.write_bytes(value)
        else:
            path.write_text(value if isinstance(value, str) else json.dumps(value))


# Tokenizers: ids


def same_ids(theirs: Path, out: Path) -> None:
    ours, _ = imports.import_hf(theirs, out)
    reference = transformers.AutoTokenizer.from_pretrained(theirs)
    reference.backend_tokenizer.encode_special_tokens = True  # the name of a control symbol is ordinary text here
    assert ours.vocab_size == len(reference)
    for text in TEXTS:
        expected = reference(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text).tolist() == expected, ascii(text)
        plain = [number for number in expected if number != reference.unk_token_id]
        decoded = reference.decode(plain, clean_up_tokenization_spaces=False)
        assert ours.decode(plain).replace("\ufffd", "") == decoded.replace("\ufffd", ""), ascii(text)


def refused_tokenizer(theirs: Path, out: Path) -> None:
    imports.import_hf(theirs, out)


def bert(folder: Path, added: Any = (), kind: str = "BertTokenizer", **options: Any) -> None:
    made = getattr(transformers, kind)(vocab=BERT, **options)
    made.add_tokens(list(added))
    made.save_pretrained(folder)


def old_bert(folder: Path, added: Any = None, **settings: Any) -> None:
    config = {"tokenizer_class": "BertTokenizer", **settings}
    write(folder, vocab_txt="".join(f"{piece}\n" for piece in BERT), tokenizer_config_json=config)
    if added:
        write(folder, added_tokens_json=added)


def roberta_of_berts(folder: Path) -> None:
    """As KLUE's: the configuration of the model names the class."""
    old_bert(folder)
    settings = {"model_type": "roberta", "tokenizer_class": "BertTokenizer"}
    write(folder, tokenizer_config_json={"do_lower_case": False}, config_json=settings)


def byte_level(folder: Path, kind: str = "GPT2Tokenizer", added: Any = (), **options: Any) -> None:
    vocabulary = ROBERTA if kind == "RobertaTokenizer" else GPT2
    made = getattr(transformers, kind)(vocab=vocabulary, merges=MERGES, **options)
    made.add_tokens(list(added))
    made.save_pretrained(folder)


def old_byte_level(folder: Path, vocabulary: dict[str, int] = GPT2, added: Any = None, **settings: Any) -> None:
    merges = "#version: 0.2\n" + "".join(f"{first} {second}\n" for first, second in MERGES)
    kind = "RobertaTokenizer" if vocabulary is ROBERTA else "GPT2Tokenizer"
    write(folder, vocab_json=vocabulary, merges_txt=merges, tokenizer_config_json={"tokenizer_class": kind, **settings})
    if added:
        write(folder, added_tokens_json=added)


def t5(folder: Path, added: Any = (), **settings: Any) -> None:
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 10, **settings}
    write(folder, spiece_model=spiece_model(), tokenizer_config_json=config)
    if added:
        made = transformers.AutoTokenizer.from_pretrained(folder)
        made.add_tokens(list(added))
        made.save_pretrained(folder)  # tokenizer.json beside spiece.model, which lacks them


def any_json(folder: Path, made: Callable[[], tokenizers.Tokenizer], config: Any = None, **changes: Any) -> None:
    contents = json.loads(made().to_str())
    model = {**contents["model"], **changes.pop("model", {})}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>", **(config or {})}
    write(folder, tokenizer_json={**contents, "model": model, **changes}, tokenizer_config_json=config)


def token(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, **flags)


BLANKS = [" " * count for count in range(12, 1, -1)]
TOKENIZERS: dict[str, Make] = {
    "bert": bert,
    "bert-cased": partial(bert, do_lower_case=False),
    "bert-keeps-accents": partial(bert, strip_accents=False),
    "bert-cased-strips-accents": partial(bert, do_lower_case=False, strip_accents=True),
    "bert-chinese-words": partial(bert, tokenize_chinese_chars=False),
    "bert-added": partial(bert, added=["covid19", "<user>"]),
    "bert-added-as-written": partial(bert, added=[token("COVID19", normalized=False), token("<user>", lstrip=True)]),
    "bert-added-single-word": partial(bert, added=[token("covid19", single_word=True), token("<user>", rstrip=True)]),
    "bert-added-special": partial(bert, additional_special_tokens=["<system>"]),
    "distilbert": partial(bert, kind="DistilBertTokenizer", strip_accents=False),
    "electra": partial(bert, kind="ElectraTokenizer", do_lower_case=False),
    "old-bert": old_bert,
    "old-bert-of-a-roberta": roberta_of_berts,
    "old-bert-keeps-accents": partial(old_bert, strip_accents=False, tokenize_chinese_chars=False),
    "old-bert-cased": partial(old_bert, do_lower_case=False),
    "old-bert-added": partial(old_bert, added={"covid19": len(BERT), "<user>": len(BERT) + 1}),
    "gpt2": byte_level,
    "gpt2-prefix-space": partial(byte_level, add_prefix_space=True),
    "gpt2-padded-with-its-end": partial(byte_level, pad_token="<|endoftext|>"),
    "gpt2-added": partial(byte_level, added=["<user>", "covid19"]),
    "gpt2-blanks": partial(byte_level, added=BLANKS),
    "gpt2-prefix-space-added": partial(byte_level, added=["covid19", *BLANKS], add_prefix_space=True),
    "old-gpt2": old_byte_level,
    "old-gpt2-prefix-space": partial(old_byte_level, add_prefix_space=True, added={"<user>": len(GPT2)}),
    "roberta": partial(byte_level, kind="RobertaTokenizer"),
    "roberta-prefix-space": partial(byte_level, kind="RobertaTokenizer", add_prefix_space=True),
    "old-roberta": partial(old_byte_level, vocabulary=ROBERTA),
    "t5": t5,
    "t5-added": partial(t5, added=["covid19", token("<user>", lstrip=True, rstrip=True)]),
    "any-bytes": partial(any_json, made=llama),
    "any-unigram": partial(any_json, made=unigram),
    "any-words": partial(any_json, made=wordlevel),
}
CODE = {"tokenizer_class": "MyTokenizer", "auto_map": {"AutoTokenizer": ["my.MyTokenizer", None]}}
REFUSED_TOKENIZERS: dict[str, tuple[Make, str]] = {
    "code-of-the-folder": (partial(old_bert, **CODE), "transformers cannot read its tokenizer"),
    "ids-at-random": (
        partial(any_json, made=llama, model={"dropout": 0.1}),
        "model.dropout 0.1: a text would have other",
    ),
    "a-switch-that-is-none": (partial(old_bert, do_lower_case="no"), "do_lower_case is 'no'; it must be true or false"),
    "sentinels-without-end": (partial(t5, extra_ids=10**12), "extra_ids is 1000000000000; it must be from 0 to 100000"),
    "a-program": (partial(old_byte_level, tokenizer_class="CTRLTokenizer"), "CTRLTokenizer is a program of transform"),
    "no-class": (
        lambda folder: write(folder, spiece_model=spiece_model(bos_id=3)),
        "not a model like T5's, and nothing names its class",
    ),
}

# Models: logits

SHAPE = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
T5_SHAPE = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}


def same_logits(theirs: Path, out: Path, task: str | None = None) -> None:
    import_hf(theirs, out, task=task)
    loaded = load_checkpoint(out)
    name = json.loads((theirs / "config.json").read_text())["architectures"][0]
    reference = getattr(transformers, name).from_pretrained(theirs, dtype=torch.float32).eval()
    numbers = np.random.default_rng(0)
    ids_BS = torch.from_numpy(numbers.integers(0, loaded.tokenizer.vocab_size, (2, 9)))
    with torch.no_grad():
        if loaded.config.model.kind == "encoder_decoder":
            wanted_BSV = reference(input_ids=ids_BS, decoder_input_ids=ids_BS.flip(1)).logits
            found_BSV = loaded.model(ids_BS, ids_BS.flip(1))
        else:
            wanted_BSV = reference(input_ids=ids_BS).logits
            found_BSV = loaded.model(ids_BS)
    rows = loaded.tokenizer.vocab_size
    assert wanted_BSV.abs().max() > 0.1, "the logits are away from zero"
    torch.testing.assert_close(found_BSV[..., :rows], wanted_BSV[..., :rows], rtol=0, atol=1e-5)
    hf_export.export(out, out.with_name("again"))
    again = getattr(transformers, name).from_pretrained(out.with_name("again")).eval()
    with torch.no_grad():
        given = {"decoder_input_ids": ids_BS.flip(1)} if rows and "T5" in name else {}
        found_BSV = again(input_ids=ids_BS, **given).logits
    torch.testing.assert_close(found_BSV[..., :rows], wanted_BSV[..., :rows], rtol=0, atol=1e-5)


def refused_model(theirs: Path, out: Path) -> None:
    import_hf(theirs, out)


def save(folder: Path, name: str, config: Any, dtype: torch.dtype = torch.float32, **options: Any) -> None:
    torch.manual_seed(0)
    model = getattr(transformers, name)(config)
    for value in model.parameters():
        value.data = torch.randn_like(value) * 0.2 + (value.data.mean() > 0.9)
    model.tie_weights()
    model.to(dtype).save_pretrained(folder, **options)


def bert_model(folder: Path, name: str = "BertForMaskedLM", rows: int = len(BERT), **options: Any) -> None:
    bert(folder)
    save(folder, name, transformers.BertConfig(vocab_size=rows, max_position_embeddings=16, **SHAPE), **options)


def gpt2_model(folder: Path, rows: int = len(GPT2), **options: Any) -> None:
    byte_level(folder)
    config = transformers.GPT2Config(vocab_size=rows, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    save(folder, "GPT2LMHeadModel", config, **options)


def t5_model(folder: Path, proj: str, tied: bool, scaled: bool, **changes: Any) -> None:
    t5(folder)
    save(
        folder, "T5ForConditionalGeneration", transformers.T5Config(vocab_size=130, feed_forward_proj=proj, **T5_SHAPE)
    )
    config = json.loads((folder / "config.json").read_text())
    config |= {"scale_decoder_outputs": scaled, **changes}
    write(folder, config_json=config)
    if not tied:
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        # logits as large as those of a tied head: where they are 15, rounding alone exceeds 1e-5 on some CPUs
        tensors["lm_head.weight"] = torch.randn(130, 16, generator=torch.Generator().manual_seed(1)) / 4
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def old_untied(folder: Path) -> None:
    """As older versions wrote T5 1.1 and ProtT5: one key said both."""
    t5_model(folder, "relu", tied=False, scaled=False)
    config = json.loads((folder / "config.json").read_text())
    for key in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act"):
        config.pop(key)
    write(folder, config_json={**config, "tie_word_embeddings": False})


MODELS: dict[str, Make] = {
    "bert-16-bits": partial(bert_model, dtype=torch.float16),
    "bert-rows-of-8": partial(bert_model, rows=-(-len(BERT) // 8) * 8),
    "bert-rows-of-its-own": partial(bert_model, rows=len(BERT) + 37),
    "gpt2-shards": partial(gpt2_model, max_shard_size="8KB"),
    "gpt2-bfloat16": partial(gpt2_model, dtype=torch.bfloat16),
    **{
        f"t5-{proj}-{'tied' if tied else 'untied'}-{'scaled' if scaled else 'unscaled'}": partial(
            t5_model, proj=proj, tied=tied, scaled=scaled
        )
        for proj in ("relu", "gated-gelu")
        for tied in (True, False)
        for scaled in (True, False)
    },
    "t5-gelu": partial(t5_model, proj="relu", tied=True, scaled=True, dense_act_fn="gelu_new"),
    "t5-gate-of-another-name": partial(t5_model, proj="gated-silu", tied=True, scaled=True, dense_act_fn="gelu_new"),
    "t5-old-untied": old_untied,
}
REFUSED_MODELS: dict[str, tuple[Make, str]] = {
    "t5-gated-silu": (
        partial(t5_model, proj="gated-silu", tied=True, scaled=True),
        "'silu' is not known of a gated la",
    ),
    "t5-gated-exact": (
        partial(t5_model, proj="gated-gelu", tied=False, scaled=False, dense_act_fn="gelu"),
        "dense_act_fn 'gelu' is not known of a gated layer of T5; gelu_new",
    ),
    "questions": (partial(bert_model, name="BertForQuestionAnswering"), "is a fine-tuned model; say what it reads"),
    "tagging": (partial(bert_model, name="BertForTokenClassification"), "is a fine-tuned model; say what it reads"),
    "fewer-rows": (partial(gpt2_model, rows=len(GPT2) - 4), "has rows for 258 token ids, the tokenizer gives text ids"),
}

# Folders of sentence-transformers: vectors

SENTENCES = ["ab, über", "a", "café covid19 漢字 " * 9, "user ab b", "", *("ab " * count for count in range(1, 20))]
Modules = Callable[[int], list[Any]]


def same_vectors(theirs: Path, out: Path) -> None:
    """Also those of an export, and of what it is imported as."""
    import_hf(theirs, out)
    reference = st.SentenceTransformer(str(theirs), device="cpu")
    wanted_NF = reference.encode(SENTENCES, batch_size=5, show_progress_bar=False)
    found_NF = Embedder(load_checkpoint(out)).vectors(SENTENCES)
    assert np.abs(wanted_NF[0] - wanted_NF[3]).max() > 0.01, "the texts matter"
    np.testing.assert_allclose(found_NF, wanted_NF, rtol=0, atol=1e-5)
    again, back = out.with_name("again"), out.with_name("back")
    hf_export.export(out, again)
    exported_NF = st.SentenceTransformer(str(again), device="cpu").encode(SENTENCES, show_progress_bar=False)
    np.testing.assert_allclose(exported_NF, wanted_NF, rtol=0, atol=1e-5)
    import_hf(again, back)
    back_NF = Embedder(load_checkpoint(back)).vectors(SENTENCES)
    np.testing.assert_allclose(normalised(back_NF), normalised(found_NF), rtol=0, atol=1e-6)


def sentence(folder: Path, after: Modules, family: str = "bert", limit: int = 16, **options: Any) -> None:
    """`after` gives the modules after the encoder, by its width."""
    base = folder.with_name("base")
    if family == "bert":
        bert_model(base, "BertModel")
    elif family == "gpt2":
        byte_level(base, pad_token="<|endoftext|>")
        config = transformers.GPT2Config(vocab_size=len(GPT2), n_positions=32, n_embd=16, n_layer=1, n_head=2)
        save(base, "GPT2Model", config)
    else:
        byte_level(base, "RobertaTokenizer")
        sizes = {"vocab_size": len(ROBERTA), "max_position_embeddings": 40, "type_vocab_size": 1}
        save(base, "RobertaModel", transformers.RobertaConfig(**SHAPE, **sizes))
    encoder = modules.Transformer(str(base), max_seq_length=limit)
    torch.manual_seed(1)
    model = st.SentenceTransformer(modules=[encoder, *after(16)], device="cpu", **options)
    model.save_pretrained(str(folder))


def pooled(*modes: str, **options: Any) -> Modules:
    return lambda width: [modules.Pooling(width, modes, **options)]


def then(*made: Callable[[int], Any], modes: tuple[str, ...] = ("mean",)) -> Modules:
    return lambda width: [modules.Pooling(width, modes), *(one(width * len(modes)) for one in made)]


def moved(folder: Path) -> None:
    """As the first versions had it: the encoder in a folder of its own, and switches for the ways to pool."""
    sentence(folder, pooled("cls", "max"))
    encoder = folder / "0_Transformer"
    encoder.mkdir()
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json", "README.md"):
            shutil.move(path, encoder)
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    for one in listed:
        one["type"] = f"sentence_transformers.models.{one['type'].rpartition('.')[2]}"
    keys = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}
    write(folder, modules_json=listed)
    write(encoder, sentence_bert_config_json={"max_seq_length": 12, "do_lower_case": False})
    write(folder / "1_Pooling", config_json={"word_embedding_dimension": 16, **keys})


def changed(folder: Path, file: str, after: Modules, **values: Any) -> None:
    sentence(folder, after)
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def dense(width: int, activation: Any = None, features: int = 6, **options: Any) -> Any:
    return modules.Dense(width, features, activation_function=activation or torch.nn.Tanh(), **options)


PROMPT = {"prompts": {"query": "user: "}, "default_prompt_name": "query"}
VECTORS: dict[str, Make] = {
    **{f"pooling-{mode}": partial(sentence, after=pooled(mode)) for mode in modules.Pooling.POOLING_MODES},
    "joined": partial(sentence, after=pooled("max", "cls", "weightedmean")),
    "dense": partial(sentence, after=then(dense, modes=("cls", "mean"))),
    "dense-residual": partial(sentence, after=then(partial(dense, activation=torch.nn.GELU(), use_residual=True))),
    "dense-square": partial(
        sentence,
        after=then(partial(dense, activation=torch.nn.Identity(), features=16, bias=False, use_residual=True)),
    ),
    "dense-norm-normalised": partial(
        sentence, after=then(dense, lambda _: modules.LayerNorm(6), lambda _: modules.Normalize())
    ),
    "dropout": partial(sentence, after=then(lambda _: modules.Dropout(0.5), lambda _: modules.Normalize())),
    "short": partial(sentence, after=pooled("mean"), limit=5),
    "truncated": partial(sentence, after=pooled("mean"), truncate_dim=7),
    "prompt": partial(sentence, after=pooled("mean"), **PROMPT),
    "dot": partial(sentence, after=pooled("mean"), similarity_fn_name="dot"),
    "roberta": partial(sentence, after=pooled("mean"), family="roberta"),
    "gpt2-last": partial(sentence, after=pooled("lasttoken"), family="gpt2"),
    "gpt2-without-tokens": partial(  # of the text "", which this tokenizer puts nothing around
        sentence, after=then(dense, modes=("mean", "mean_sqrt_len_tokens", "weightedmean")), family="gpt2"
    ),
    "first-versions": moved,
}
REFUSED_VECTORS: dict[str, tuple[Make, str]] = {
    "without-its-prompt": (
        partial(sentence, after=pooled("mean", include_prompt=False), **PROMPT),
        "include_prompt=false",
    ),
    "another-module": (
        partial(sentence, after=lambda width: [modules.CNN(width), modules.Pooling(256)]),
        "no Pooling follows the Transformer",
    ),
    "another-activation": (
        partial(sentence, after=then(partial(dense, activation=torch.nn.Softplus()))),
        r"activation_function 'torch.nn.modules.activation.Softplus' is not known here",
    ),
    "another-pooling": (
        partial(changed, file="1_Pooling/config.json", after=pooled("mean"), pooling_mode="attention"),
        "pooling 'attention' is not known here",
    ),
    "lower-case-twice": (
        partial(changed, file="sentence_bert_config.json", after=pooled("mean"), do_lower_case=True),
        "do_lower_case is on: set it in tokenizer_config.json",
    ),
}
CASES = {
    **{f"tokenizer-{name}": Case(make, same_ids) for name, make in TOKENIZERS.items()},
    **{f"tokenizer-{name}": Case(make, refused_tokenizer, words) for name, (make, words) in REFUSED_TOKENIZERS.items()},
    **{f"model-{name}": Case(make, same_logits) for name, make in MODELS.items()},
    **{f"model-{name}": Case(make, refused_model, words) for name, (make, words) in REFUSED_MODELS.items()},
    **{f"vectors-{name}": Case(make, same_vectors) for name, make in VECTORS.items()},
    **{f"vectors-{name}": Case(make, refused_model, words) for name, (make, words) in REFUSED_VECTORS.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_it_means_what_it_means_there(name: str, tmp_path: Path) -> None:
    random.seed(0)
    case = CASES[name]
    case.make(tmp_path / "theirs")
    if case.refused is None:
        case.compare(tmp_path / "theirs", tmp_path / "out")
        return
    with pytest.raises(UserError) as caught:
        case.compare(tmp_path / "theirs", tmp_path / "out")
    (line,) = caught.value.problems
    assert case.refused in line
    assert "\n" not in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["BertForQuestionAnswering", "BertForTokenClassification"])
def test_an_encoder_without_its_head(name: str, tmp_path: Path) -> None:
    bert_model(tmp_path / "theirs", name)
    remarks = import_hf(tmp_path / "theirs", tmp_path / "out", task="none")
    head = "qa_outputs" if "Question" in name else "classifier"
    assert remarks[0] == f"{head}.bias, {head}.weight left out, as --task none says"
    loaded = load_checkpoint(tmp_path / "out")
    reference = getattr(transformers, name).from_pretrained(tmp_path / "theirs").bert
    ids_BS = torch.arange(5, 14)[None]
    with torch.no_grad():
        wanted_BSD = reference(input_ids=ids_BS).last_hidden_state
        found_SBD = loaded.model.hidden(ids_BS.T)
    torch.testing.assert_close(found_SBD.transpose(0, 1), wanted_BSD, rtol=0, atol=1e-5)


def test_a_limit_too_small_for_a_task_is_said(tmp_path: Path) -> None:
    bert(tmp_path / "theirs", model_max_length=7)
    sizes = {"vocab_size": len(BERT), "max_position_embeddings": 16, "num_labels": 1}
    save(tmp_path / "theirs", "BertForSequenceClassification", transformers.BertConfig(**SHAPE, **sizes))
    (told,) = import_hf(tmp_path / "theirs", tmp_path / "out", task="pair")
    assert told.startswith("the model_max_length 7 of its tokenizer is left out")


@pytest.mark.parametrize("limit", [None, 9])
def test_scores_of_a_cross_encoder(limit: int | None, tmp_path: Path) -> None:
    """As its library saves it. They are those before its sigmoid, and the import says so."""
    bert(tmp_path / "base")
    sizes = {"vocab_size": len(BERT), "max_position_embeddings": 16, "num_labels": 1}
    save(tmp_path / "base", "BertForSequenceClassification", transformers.BertConfig(**SHAPE, **sizes))
    theirs = st.CrossEncoder(str(tmp_path / "base"), max_length=limit, device="cpu")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    (told,) = import_hf(tmp_path / "theirs", tmp_path / "out", task="pair")
    assert told == "a score is the output of its head: the Sigmoid that CrossEncoder applies to it is left out"
    pairs = [("ab caf", "user ab"), ("a", "café covid19 漢字 user ab"), ("user ab user ab", "ab user")]
    predictor, reader = predictor_of(tmp_path / "out")
    found = predictor.scores([reader.of_fields([*pair]) for pair in pairs])[:, 0]
    wanted = theirs.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
    assert np.ptp(wanted) > 0.05, "the texts matter"
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
