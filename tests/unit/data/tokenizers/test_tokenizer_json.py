"""Any tokenizer.json: the ids of the library on whole texts, roles by name, from a folder or a hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from gpt1_ds.cli import main
from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.data import parts
from gpt1_ds.data.build import build
from gpt1_ds.data.dataset import Dataset
from gpt1_ds.data.tokenizers import imports
from gpt1_ds.data.verify import verify_dataset
from gpt1_ds.interop.hf_tokenizer import tokenizer_files
from tests.helpers.folder_hub import serve
from tests.unit.data.corpora import sentences
from tests.unit.data.formats import DOCUMENTS, write_jsonl

SYMBOLS = ["<s>", "</s>", "<unk>", "<pad>", "<mask>"]
TEXT = 'Ab  cd\n\n ef <mask> </s>\tcafé naïve \u2581 \U0001f600 karen "stamitu" 5th.\n'


def unigram() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=SYMBOLS, unk_token="<unk>", show_progress=False)
    made.train_from_iterator(sentences(300), trainer)
    return made


def llama() -> tokenizers.Tokenizer:
    """Byte-level, but with a pattern that is not GPT-2's."""
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    pattern = tokenizers.Regex(
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SYMBOLS, initial_alphabet=letters, show_progress=False)
    made.train_from_iterator(sentences(300), trainer)
    return made


def wordlevel() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.train_from_iterator(sentences(50), trainers.WordLevelTrainer(special_tokens=SYMBOLS, show_progress=False))
    return made


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {"unigram": unigram, "llama": llama, "wordlevel": wordlevel}


def save(folder: Path, made: tokenizers.Tokenizer, **config: Any) -> Path:
    folder.mkdir(parents=True)
    made.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_the_library_s_but_for_names_of_symbols(kind: str, tmp_path: Path) -> None:
    theirs = KINDS[kind]()
    ours, _ = imports.import_hf(save(tmp_path / "hf", theirs), tmp_path / "out")
    assert ours.kind == "tokenizer-json"
    plain = TEXT.replace("<mask>", "mask").replace("</s>", "")
    expected = theirs.encode(plain, add_special_tokens=False).ids
    assert ours.encode(plain).tolist() == expected
    if kind == "llama":
        assert ours.decode(expected) == plain
        assert ours.decode(ours.encode(TEXT)) == TEXT
        assert ours.token_bytes()[ours.encode(TEXT)].sum() == len(TEXT.encode())
    control = [ours.special_ids.mask, ours.eod_id, ours.special_ids.pad]
    assert not np.isin(ours.encode(TEXT), control).any()
    assert ours.special_ids.present() == {
        "unknown": 2, "eod": 1, "pad": 3, "mask": 4
    }  # fmt: skip
    both = theirs.encode("One two three", add_special_tokens=False).ids
    assert [*ours.encode("One two").tolist(), *ours.encode_part(" three", "o").tolist()] == both


@pytest.mark.parametrize("kind", KINDS)
def test_datasets_do_not_depend_on_units_or_formats(kind: str, tmp_path: Path) -> None:
    imports.import_hf(save(tmp_path / "hf", KINDS[kind]()), tmp_path / "tok")
    texts = tmp_path / "texts"
    texts.mkdir()
    for number, text in enumerate(DOCUMENTS[:40]):
        (texts / f"{number:03d}.txt").write_text(text, newline="")
    rows = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS[:40])
    one = build([texts], tmp_path / "tok", tmp_path / "one", workers=1, unit_bytes=100)
    two = build([rows], tmp_path / "tok", tmp_path / "two", workers=2, unit_bytes=3000)
    split = build([rows], tmp_path / "tok", tmp_path / "three", workers=1, split_sentences=True)
    assert one.data_hash == two.data_hash
    ours, theirs = one.split("train"), split.split("train")
    assert np.array_equal(ours.read(0, ours.tokens), theirs.read(0, theirs.tokens))
    assert theirs.sentence_counts["sentences"] > 2 * theirs.documents
    verify_dataset(tmp_path / "three")


def test_documents_that_are_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imports.import_hf(save(tmp_path / "hf", unigram()), tmp_path / "tok")
    monkeypatch.setattr(parts, "MOST_LETTERS", 1 << 20)
    (tmp_path / "a.txt").write_text("a b c\n" * 200_000)
    with pytest.raises(DataError, match=r"a\.txt: a document is longer than 1 Mi letters"):
        build([tmp_path / "a.txt"], tmp_path / "tok", tmp_path / "out", workers=1)


def test_a_pattern_that_takes_too_long(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The library panics, which is no Exception, and writes a trace: one line names the file and the document."""
    made = tokenizers.Tokenizer(models.BPE({piece: number for number, piece in enumerate(["a", "b", " ", "</s>"])}, []))
    made.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("(a+)+$|b"), "isolated")
    made.add_special_tokens(["</s>"])
    ours, _ = imports.import_hf(save(tmp_path / "hf", made, eos_token="</s>"), tmp_path / "tok")
    assert ours.encode("ab").tolist() == [0, 1]
    rows = write_jsonl(tmp_path / "a.jsonl", ["ab", "a" * 40 + "b"])
    capfd.readouterr()
    with pytest.raises(
        DataError, match=r"a\.jsonl: document 2, which begins with 'a{40}': .*retry-limit-in-match"
    ) as caught:
        build([rows], tmp_path / "tok", tmp_path / "out", workers=1)
    assert len(caught.value.problems) == 1
    assert "panicked" not in capfd.readouterr().err


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer.json that it would change nothing of is read; what needs its converters is refused in one line."""
    folder = save(tmp_path / "hf", llama(), eos_token="</s>")
    expected, _ = imports.import_hf(folder, tmp_path / "with")
    monkeypatch.setitem(sys.modules, "transformers", None)
    found, _ = imports.import_hf(folder, tmp_path / "without")
    assert found.special_ids == expected.special_ids
    assert found.encode(TEXT).tolist() == expected.encode(TEXT).tolist()
    for config in ({"tokenizer_class": "BertTokenizer"}, {"pad_token": "<new>"}):
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        with pytest.raises(DataError, match=r"it is not installed: pip install 'gpt1-ds\[hub\]'"):
            imports.import_hf(folder, tmp_path / "refused")


def test_roles_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "hf", llama(), bos_token="<s>", pad_token={"__type": "AddedToken", "content": "</s>"})
    tokenizer, (line,) = imports.import_hf(folder, tmp_path / "a")
    assert line == "tokenizer.json: unknown <unk>, eod </s>, start <s>, pad </s>, mask <mask>"
    with pytest.raises(ConfigError, match=r"needs a token <cls>: the tokenizer has none; .* by --role$"):
        tokenizer.special_ids.require("cls", "data.text=pairs")
    command = ["tokenizer", "import", "--hf", str(folder), "--out", str(tmp_path / "b")]
    assert main([*command, "--role", "cls=<s>", "--role", "sep=</s>", "--role", "pad=<pad>"]) == 0
    assert "cls <s>, separator </s>, pad <pad>" in capsys.readouterr().out
    for words, message in (
        (["cls"], "--role cls: must be NAME=SYMBOL, NAME being one of eod, unknown, cls"),
        (["head=<s>"], "must be NAME=SYMBOL"),
        (["cls=<s>", "cls=</s>"], "this role is '<s>' already"),
        (["cls=<nothing>"], "has no symbol '<nothing>' for --role cls"),
        (["cls=\u0120ka"], "is text that is merged, not a symbol for --role cls"),
    ):
        given = [word for one in words for word in ("--role", one)]
        assert main([*command[:-1], str(tmp_path / "c"), *given]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_special_tokens_that_are_ordinary_text_here_are_named(tmp_path: Path) -> None:
    """The library finds them in a text, as it does other added ones, which are found here, too."""
    made = llama()
    made.add_tokens(["<found>"])
    made.add_special_tokens([f"<e{number}>" for number in range(6)])
    tokenizer, (_, line) = imports.import_hf(save(tmp_path / "hf", made, bos_token="<s>"), tmp_path / "a")
    assert line.startswith("transformers finds the special tokens <e0>, <e1>, <e2>, <e3>, 2 more in a text; here")
    assert made.encode("a<found>b").ids == tokenizer.encode("a<found>b").tolist()
    assert made.encode("a<e0>b").ids != tokenizer.encode("a<e0>b").tolist()
    assert tokenizer.decode(tokenizer.encode("a<e0>b")) == "a<e0>b"
    made.add_tokens([f"<e{number}>" for number in range(6)])
    tokenizer, said = imports.import_hf(save(tmp_path / "again", made, bos_token="<s>"), tmp_path / "b")
    assert len(said) == 1
    assert made.encode("a<e0>b").ids == tokenizer.encode("a<e0>b").tolist(), "as the line says"


def test_a_byte_level_bpe_with_another_end_of_a_document(tmp_path: Path) -> None:
    """Like GPT-2's but for its symbol: the files beside it say what that is for, or a person does."""
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(sentences(300), 400, special_tokens=["<|fin|>"], show_progress=False)
    folder = save(tmp_path / "hf", made)
    with pytest.raises(DataError, match=r"no symbol is known to end a document; name one by --role eod=SYMBOL$"):
        imports.import_hf(folder, tmp_path / "a")
    assert imports.import_hf(folder, tmp_path / "b", ["eod=<|fin|>"])[1] == ["tokenizer.json: eod <|fin|>"]
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|fin|>"}')
    assert imports.import_hf(folder, tmp_path / "c")[1] == ["tokenizer.json: eod <|fin|>"]


def test_a_name_on_the_hub(tmp_path: Path) -> None:
    """A server on this machine stands for the hub."""
    save(tmp_path / "root" / "models" / "org" / "tok", unigram(), eos_token="</s>")
    (tmp_path / "root" / "models" / "org" / "none").mkdir()
    (tmp_path / "root" / "models" / "org" / "tok" / "code.py").write_text("raise SystemExit")

    def run(name: str, **variables: str) -> tuple[int, str]:
        environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "cache"), **variables}
        words = ["tokenizer", "import", "--hf", name, "--out", str(tmp_path / name.replace("/", "-"))]
        command = [sys.executable, "-m", "gpt1_ds", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        return done.returncode, done.stderr

    with serve(tmp_path / "root") as server:
        assert run("org/tok", HF_HUB_OFFLINE="1") == (
            2, "gpt1-ds: --hf org/tok: HF_HUB_OFFLINE is set, and it is not in the cache; unset it\n"
        )  # fmt: skip
        assert run("org/tok") == (0, "")
        assert not any("code.py" in line for line in server.asked)
        assert "neither a folder nor a repository on the hub" in run("org/nothing")[1]
        assert "--hf org/none: has no tokenizer.json" in run("org/none")[1]
        server.gated.add("org/tok")
        assert "--hf org/tok: is gated; ask for access" in run("org/tok", HF_HOME=str(tmp_path / "new"))[1]
    build([write_jsonl(tmp_path / "a.jsonl")], tmp_path / "org-tok", tmp_path / "data", workers=1)
    assert Dataset(tmp_path / "data").vocab_size == 300


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exported_is_what_was_imported(kind: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = save(tmp_path / "hf", KINDS[kind]())
    ours, _ = imports.import_hf(folder, tmp_path / "tok", ["cls=<s>"])
    exported = tmp_path / "exported"
    exported.mkdir()
    for name, value in tokenizer_files(ours, 32).items():
        (exported / name).write_text(json.dumps(value))
    theirs = AutoTokenizer.from_pretrained(exported)
    text = " ".join(sentences(5, seed=9))
    assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text).tolist()
    assert (theirs.cls_token_id, theirs.eos_token_id) == (ours.special_ids.cls, ours.eod_id)
    assert imports.import_hf(exported, tmp_path / "back")[0].special_ids == ours.special_ids
