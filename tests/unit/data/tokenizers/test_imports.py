"""Import of published tokenizers, and what is refused: one line each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers import imports
from gpt1_ds.data.tokenizers.base import METADATA, Tokenizer
from gpt1_ds.data.tokenizers.gpt2_bpe import BYTE_LETTERS
from gpt1_ds.data.tokenizers.registry import encode_alike, load_tokenizer
from gpt1_ds.interop.hf_tokenizer import tokenizer_files
from tests.unit.data.tokenizers.t5_files import spiece_model

OLD = Path(__file__).parents[3] / "golden" / "tokenizers-format-2"
LETTERS = list(BYTE_LETTERS.values())
MERGES = "#version: 0.2\na b\nĠ ab\n"
GPT2 = {piece: number for number, piece in enumerate([*LETTERS, "ab", "Ġab", "<|endoftext|>"])}
ROBERTA = {
    piece: number for number, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *LETTERS, "ab", "Ġab", "<mask>"])
}
T5 = {
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        ],
    },
    "added_tokens": [],
}
WORDPIECE = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "vocab.json").write_text(json.dumps(GPT2))
    (tmp_path / "merges.txt").write_text(MERGES)
    return tmp_path


def import_gpt2(files: Path, **options: bool) -> Tokenizer:
    return imports.import_gpt2(files / "vocab.json", files / "merges.txt", files / "out", **options)[0]


def refused(work: Callable[[], Any], out: Path) -> str:
    with pytest.raises(DataError) as caught:
        work()
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)
    assert not out.exists()
    return str(caught.value)


def test_gpt2(files: Path) -> None:
    tokenizer = import_gpt2(files)
    assert tokenizer.encode("ab ab<|endoftext|>").tolist()[:2] == [256, 257]
    assert tokenizer.special_ids.present() == {"eod": 258}
    assert tokenizer.vocab_size == 259
    assert {path.name for path in (files / "out").iterdir()} == {"tokenizer.json", METADATA}
    assert json.loads((files / "out" / METADATA).read_text())["format"] == 2


def test_symbols_are_appended_when_asked_for(files: Path) -> None:
    tokenizer = import_gpt2(files, task_symbols=True, masks=True)
    added = ("start", "delimiter", "extract", "cls", "separator", "pad", "mask")
    assert tokenizer.special_ids.present() == {"eod": 258, **{role: 259 + n for n, role in enumerate(added)}}
    assert tokenizer.vocab_size == 266
    assert tokenizer.decode([*tokenizer.encode("ab <mask>"), *range(258, 266)]) == "ab <mask>"


def test_roberta(files: Path) -> None:
    (files / "vocab.json").write_text(json.dumps(ROBERTA))
    tokenizer = import_gpt2(files, masks=True)  # it has them
    assert tokenizer.vocab_size == 263
    expected = {"unknown": 3, "eod": 2, "cls": 0, "separator": 2, "pad": 1, "mask": 262}
    assert tokenizer.special_ids.present() == expected


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ("{", "vocab.json: not JSON"),
        ("[" * 100_000, "vocab.json: not JSON"),
        ("[1]", "not a vocabulary with the ids"),
        ("{}", "not a vocabulary with the ids"),
        ('{"a": 0, "b": 0}', "not a vocabulary with the ids"),
        ('{"a": 0, "b": true}', "not a vocabulary with the ids"),
        ('{"a": 0, "b": 1e9}', "not a vocabulary with the ids"),
        ('{"a": 0, "b": 1}', "has no id for the byte"),
        (json.dumps({**GPT2, "a b": 259}), "the piece 'a b' is not written"),
        (json.dumps({**GPT2, "\ud800": 259}), "is not written"),
        (json.dumps({**GPT2, "": 259}), "is not written"),
        (json.dumps({p: n for p, n in GPT2.items() if n < 258}), r"has neither <\|endoftext\|> nor"),
        (json.dumps({**{p: n for p, n in GPT2.items() if n < 257}, "<|endoftext|>": 257}), r"merge 1 .* does not fit"),
    ],
)
def test_vocabularies_that_are_refused(files: Path, vocabulary: str, message: str) -> None:
    import re

    (files / "vocab.json").write_text(vocabulary)
    assert re.search(message, refused(lambda: import_gpt2(files), files / "out"))


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        (b"#version\nab\n", "merge 0 ('ab') does not fit"),
        (b"a b c\n", "merge 0"),
        (b"a b\n\nc d\n", "merge 1"),
        (b"b a\n", "merge 0"),
        (b"a \xff\n", "byte 2 is not UTF-8"),
    ],
)
def test_merges_that_are_refused(files: Path, merges: bytes, message: str) -> None:
    (files / "merges.txt").write_bytes(merges)
    assert message in refused(lambda: import_gpt2(files), files / "out")


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (b"[PAD]\n[UNK]\n[CLS]\n[MASK]\n", "has no [SEP]"),
        (b"[PAD]\n\n[UNK]\n", "line 2: is empty"),
        (f"{WORDPIECE}a\n".encode(), "line 8: the piece 'a' is there twice"),
        (b"\xff\n", "byte 0 is not UTF-8"),
        (b"", "line 1: is empty"),
    ],
)
def test_wordpieces_that_are_refused(tmp_path: Path, vocabulary: bytes, message: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(vocabulary)
    work = lambda: imports.import_wordpiece(tmp_path / "vocab.txt", tmp_path / "out")  # noqa: E731
    assert message in refused(work, tmp_path / "out")


def test_files_that_are_missing_or_too_large(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "MAX_BYTES", 100)
    assert "too large for a vocabulary" in refused(lambda: import_gpt2(files), files / "out")
    (files / "vocab.json").unlink()
    assert "no such file" in refused(lambda: import_gpt2(files), files / "out")


def test_a_folder_of_files(files: Path, tmp_path: Path) -> None:
    tokenizer, remarks = imports.import_hf(files, tmp_path / "a")
    assert tokenizer.encode("ab  ab\nb").tolist() == import_gpt2(files).encode("ab  ab\nb").tolist()
    assert (tokenizer.special_ids.present(), tokenizer.vocab_size) == ({"eod": 258}, 259)
    assert remarks == ["tokenizer.json: eod <|endoftext|>"]
    bert = tmp_path / "bert"
    bert.mkdir()
    (bert / "vocab.txt").write_text(WORDPIECE.replace("\n", "\r\n"))
    assert imports.import_hf(bert, tmp_path / "b")[0].encode("AB").tolist() == [5, 6]
    (bert / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert imports.import_hf(bert, tmp_path / "c")[0].encode("AB a").tolist() == [1, 5]
    (bert / "tokenizer_config.json").write_text('{"do_lower_case": "no"}')
    assert "do_lower_case is 'no'" in refused(lambda: imports.import_hf(bert, tmp_path / "d"), tmp_path / "d")


@pytest.mark.parametrize("kind", ["gpt2", "symbols", "roberta", "uncased", "cased"])
def test_what_was_exported_comes_back(files: Path, tmp_path: Path, kind: str) -> None:
    (files / "vocab.txt").write_text(WORDPIECE)
    if kind == "roberta":
        (files / "vocab.json").write_text(json.dumps(ROBERTA))
    if "cased" in kind:
        ours = imports.import_wordpiece(files / "vocab.txt", files / "out", kind == "cased")[0]
    else:
        ours = import_gpt2(files, task_symbols=kind == "symbols", masks=kind == "symbols")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name, value in tokenizer_files(ours, 32).items():
        (theirs / name).write_text(json.dumps(value))
    back, (remark,) = imports.import_hf(theirs, tmp_path / "back")
    assert remark.startswith("tokenizer.json: ")
    assert (back.special_ids, back.vocab_size) == (ours.special_ids, ours.vocab_size)
    assert back.encode("AB ab  b\nb").tolist() == ours.encode("AB ab  b\nb").tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "its model has no vocabulary of pieces"),
        ({"model": {"type": "WordLevel", "vocab": [["a", 0]]}}, "transformers cannot read its tokenizer (invalid type"),
        (
            {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["</s>", 0.0]], "unk_id": 7}},
            "transformers cannot read its tokenizer (Unable to load vocab",
        ),
        ({"model": {"type": "Strange", "vocab": {"</s>": 0}}}, "transformers cannot read its tokenizer (data did not"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "its map of characters is cut off"),
        ({"model": {"type": "Unigram", "vocab": [["a"]]}, **T5}, "its model has no vocabulary of pieces"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}, **T5}, "no symbol is known to end a document"),
        ({"added_tokens": [{"id": "x"}]}, "its model has no vocabulary of pieces and ids"),
        ({"added_tokens": [{"id": 10**9, "content": "<x>"}]}, "its model has no vocabulary of pieces and ids"),
        ({"model": {"type": "BPE", "vocab": GPT2, "merges": [["a"]]}}, "transformers cannot read its tokenizer (data"),
        ({"model": {"type": "BPE", "vocab": GPT2, "merges": ["a c"]}}, "(Token `ac` out of vocabulary"),
        (
            {"model": {"type": "BPE", "vocab": {**GPT2, "\ud800": 259}, "merges": []}},
            "transformers cannot read its tok",
        ),
        (
            {"model": {"type": "BPE", "vocab": GPT2, "merges": [], "dropout": 0.1}},
            "model.dropout 0.1: a text would have",
        ),
    ],
)
def test_hugging_face_files_that_are_refused(files: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    whole = tokenizer_files(import_gpt2(files), 32)["tokenizer.json"]
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({**whole, **change}))
    assert message in refused(lambda: imports.import_hf(folder, tmp_path / "new"), tmp_path / "new")


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000, "\x80\x04"])
def test_hugging_face_files_that_are_no_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    assert "tokenizer.json: not" in refused(lambda: imports.import_hf(tmp_path, tmp_path / "new"), tmp_path / "new")


def test_folders_that_hold_nothing_known(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.pkl").write_bytes(b"cos\nsystem\n")
    assert "holds none of tokenizer.json, spiece.model" in refused(
        lambda: imports.import_hf(tmp_path, tmp_path / "n"), tmp_path / "n"
    )
    (tmp_path / "spiece.model").write_bytes(b"x")
    assert "not a SentencePiece model" in refused(lambda: imports.import_hf(tmp_path, tmp_path / "n"), tmp_path / "n")
    assert "not a folder" in refused(lambda: imports.import_hf(tmp_path / "no", tmp_path / "n"), tmp_path / "n")


@pytest.mark.parametrize("name", ["gpt2", "roberta", "wordpiece-uncased", "wordpiece-cased", "t5-unigram"])
def test_every_import_of_the_same_files_encodes_alike(name: str, tmp_path: Path) -> None:
    """Also one of an earlier version, so that a data set of it goes with a model of today; another setting does not."""
    old, files = OLD / name.replace("gpt2", "gpt2-appended"), tmp_path / "files"
    if name == "t5-unigram":
        files.mkdir()
        (files / "spiece.model").write_bytes(spiece_model(normalization_rule_name="identity"))
        (files / "tokenizer_config.json").write_text('{"extra_ids": 20}')
        imports.import_sentencepiece(files / "spiece.model", tmp_path / "a", 20)
        imports.import_sentencepiece(files / "spiece.model", tmp_path / "other", 19)
    elif "wordpiece" in name:
        shutil.copytree(old, files)
        imports.import_wordpiece(files / "vocab.txt", tmp_path / "a", "uncased" not in name)
        imports.import_wordpiece(files / "vocab.txt", tmp_path / "other", "uncased" in name)
    else:
        shutil.copytree(old, files)
        symbols = {"task_symbols": True, "masks": True} if name == "gpt2" else {}
        imports.import_gpt2(files / "vocab.json", files / "merges.txt", tmp_path / "a", **symbols)
        (files / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
        imports.import_hf(files, tmp_path / "other")
        (files / "tokenizer_config.json").write_text(
            '{"add_prefix_space": null}'
        )  # as transformers 5 writes it: not set
    if name != "gpt2":  # whose symbols --gpt2 alone appends
        imports.import_hf(files, tmp_path / "b")
        assert encode_alike(tmp_path / "a", tmp_path / "b")
    assert encode_alike(old, tmp_path / "a")
    assert not encode_alike(old, tmp_path / "other")


def test_the_command(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = ["--vocab", str(files / "vocab.json"), "--merges", str(files / "merges.txt")]
    start = ["tokenizer", "import"]
    assert main([*start, "--gpt2", *pair, "--task-symbols", "--out", str(files / "a")]) == 0
    printed = capsys.readouterr().out
    assert "taken as they are: vocab.json, merges.txt" in printed
    assert "262 ids" in printed
    assert main([*start, "--hf", str(files / "a"), "--out", str(files / "b")]) == 0
    (files / "vocab.txt").write_text(WORDPIECE)
    assert main([*start, "--wordpiece", str(files / "vocab.txt"), "--cased", "--out", str(files / "c")]) == 0
    assert load_tokenizer(files / "c").encode("A a").tolist() == [1, 5]
    (files / "spiece.model").write_bytes(spiece_model())
    t5 = [*start, "--sentencepiece", str(files / "spiece.model"), "--out"]
    assert main([*t5, str(files / "d")]) == main([*t5, str(files / "e"), "--sentinels", "0"]) == 0
    assert [load_tokenizer(files / name).vocab_size for name in "de"] == [220, 120]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "one of the arguments --openai-gpt --gpt2 --wordpiece --sentencepiece --hf is required"),
        (["--gpt2", "--openai-gpt"], "not allowed with argument"),
        (["--gpt2", "--vocab", "x"], "--gpt2 needs --merges FILE"),
        (["--openai-gpt"], "--openai-gpt needs --vocab FILE"),
        (["--hf", "x", "--cased"], "--hf has no --cased; leave it out"),
        (["--wordpiece", "x", "--masks"], "--wordpiece has no --masks; leave it out"),
        (["--wordpiece", "x", "--sentinels", "5"], "--wordpiece has no --sentinels; leave it out"),
        (["--sentencepiece", "x", "--cased"], "--sentencepiece has no --cased; leave it out"),
        (["--sentencepiece", "x"], "x: no such file"),
        (["--hf", ""], "--hf: its value is empty; name a file or folder"),
        (["--wordpiece", ""], "--wordpiece: its value is empty"),
        (["--openai-gpt", "--vocab", "x", "--merges", "y", "--task-symbols"], "--openai-gpt has no --task-symbols"),
    ],
)
def test_wrong_options(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "import", *options, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
