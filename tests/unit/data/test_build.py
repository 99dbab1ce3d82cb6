from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.text import count
from gpt1_ds.data import build as build_module
from gpt1_ds.data import parts, split_writer
from gpt1_ds.data.build import build
from gpt1_ds.data.dataset import Dataset
from gpt1_ds.data.inputs import find_inputs
from gpt1_ds.data.reading import read_unit
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.data.units import plan_units
from gpt1_ds.data.verify import verify_dataset
from tests.unit.data.corpora import content, sentences, write_corpus


def texts_of(path: Path, unwrap: bool = False) -> list[str]:
    found = [""]
    for unit in plan_units(find_inputs([path])):
        for piece in read_unit(unit, unwrap):
            found[-1] += piece.text
            if piece.ends_document:
                found.append("")
    return found[:-1]


Shown = tuple[float, str, float]


def into(seen: list[Shown]) -> Callable[[float, str, float], None]:
    return lambda done, words, total: seen.append((done, words, total))


def texts_in(dataset: Dataset, name: str, tokenizer: Tokenizer) -> list[str]:
    stream = dataset.split(name)
    tokens = stream.read(0, stream.tokens)
    *documents, rest = np.split(tokens, np.flatnonzero(tokens == tokenizer.eod_id) + 1)
    assert (len(documents), len(rest)) == (stream.documents, 0)
    return [tokenizer.decode(document) for document in documents]


def test_every_document_is_there_in_order(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    dataset = build([corpus], tokenizer_folder, tmp_path / "out", workers=1, validation=0.1)
    tokenizer = load_tokenizer(dataset.tokenizer_folder)
    expected = texts_of(corpus)
    held_out = expected[9::10]
    assert texts_in(dataset, "validation", tokenizer) == held_out
    assert texts_in(dataset, "train", tokenizer) == [text for at, text in enumerate(expected) if at % 10 != 9]
    assert dataset.split("validation").bytes == sum(len(text.encode()) for text in held_out)
    assert dataset.split("train").bytes + dataset.split("validation").bytes == sum(len(t.encode()) for t in expected)
    assert verify_dataset(tmp_path / "out").split("train").documents == len(expected) - len(held_out)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "dataset.json",
        "tokenizer",
        "train-00000.bin",
        "train-00000.idx",
        "validation-00000.bin",
        "validation-00000.idx",
    ]


def test_the_description(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    dataset = build([corpus], tokenizer_folder, tmp_path / "out", workers=1)
    description = json.loads(dataset.path.read_text())
    assert description["format"] == 1
    size = sum(path.stat().st_size for path in corpus.iterdir())
    assert description["inputs"] == [{"name": "corpus", "files": 13, "size": size, "documents": 42}]
    assert description["dtype"] == "uint16"
    assert dataset.tokenizer_fingerprint == load_tokenizer(tokenizer_folder).fingerprint
    assert description["splits"]["train"]["shards"][0]["bin_size"] == 2 * dataset.split("train").tokens


@pytest.mark.parametrize("unit_bytes", [300, 5000])
def test_workers_and_shards_change_no_token(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, unit_bytes: int
) -> None:
    sizes = {"unit_bytes": unit_bytes, "shard_tokens": 700}
    one = build([corpus], tokenizer_folder, tmp_path / "one", workers=1, validation=0.1, **sizes)
    build([corpus], tokenizer_folder, tmp_path / "two", workers=2, validation=0.1, **sizes)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    whole = build([corpus], tokenizer_folder, tmp_path / "whole", workers=1, validation=0.1)
    assert len(one.split("train").shards) > 5
    for name in ("train", "validation"):
        cut, uncut = one.split(name), whole.split(name)
        assert np.array_equal(cut.read(0, cut.tokens), uncut.read(0, uncut.tokens))
        assert (cut.documents, cut.bytes) == (uncut.documents, uncut.bytes)
    verify_dataset(tmp_path / "one")


def test_block_sizes_of_joining_change_nothing(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build([corpus], tokenizer_folder, tmp_path / "a", workers=1, validation=0.2, unit_bytes=2000)
    monkeypatch.setattr(split_writer, "COPY_TOKENS", 17)
    monkeypatch.setattr(parts, "READ_DOCUMENTS", 2)
    build([corpus], tokenizer_folder, tmp_path / "b", workers=1, validation=0.2, unit_bytes=2000)
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.parametrize("unit_bytes", [200, 1 << 24])
def test_a_single_document_gives_its_tail(tmp_path: Path, tokenizer_folder: Path, unit_bytes: int) -> None:
    text = "\n".join(sentences(50))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text("")
    dataset = build(
        [tmp_path],
        tokenizer_folder,
        tmp_path / "out",
        workers=1,
        validation=0.1,
        unit_bytes=unit_bytes,
        shard_tokens=99,
    )
    tokenizer = load_tokenizer(tokenizer_folder)
    (head,), (tail,) = (texts_in(dataset, name, tokenizer) for name in ("train", "validation"))
    assert head + tail == text
    train, validation = dataset.split("train"), dataset.split("validation")
    assert (train.bytes, validation.bytes) == (len(head.encode()), len(tail.encode()))
    total = train.tokens + validation.tokens - 2
    assert validation.tokens - 1 == round(total * 0.1)
    assert train.read(train.tokens - 1, 1)[0] == validation.read(validation.tokens - 1, 1)[0] == tokenizer.eod_id
    verify_dataset(tmp_path / "out")


@pytest.mark.parametrize("unit_bytes", [200, 1 << 24])
def test_of_few_documents_the_last_one_gives_its_tail(tmp_path: Path, tokenizer_folder: Path, unit_bytes: int) -> None:
    texts = ["\n".join(sentences(count, seed=count)) for count in (20, 120)]
    for name, text in zip("ab", texts, strict=True):
        (tmp_path / f"{name}.txt").write_text(text)
    sizes = {"unit_bytes": unit_bytes, "shard_tokens": 99}
    dataset = build([tmp_path], tokenizer_folder, tmp_path / "out", workers=1, validation=0.05, **sizes)
    tokenizer = load_tokenizer(tokenizer_folder)
    first, head = texts_in(dataset, "train", tokenizer)
    (tail,) = texts_in(dataset, "validation", tokenizer)
    assert (first, head + tail) == tuple(texts)
    train, validation = dataset.split("train"), dataset.split("validation")
    assert validation.tokens - 1 == round((train.tokens + validation.tokens - 3) * 0.05)
    assert (train.documents, validation.documents) == (2, 1)
    assert (train.bytes, validation.bytes) == (len((first + head).encode()), len(tail.encode()))
    verify_dataset(tmp_path / "out")


def test_no_validation(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    dataset = build([corpus], tokenizer_folder, tmp_path / "out", workers=1, validation=0)
    assert dataset.splits == ["train"]
    with pytest.raises(DataError, match="has no validation split; build it with `--validation`"):
        dataset.split("validation")


def test_unwrapped_text_is_what_is_counted(tmp_path: Path, tokenizer_folder: Path) -> None:
    (tmp_path / "a.txt").write_bytes(("a line of forty letters, more or less it\r\n" * 40 + "\r\nend").encode())
    dataset = build([tmp_path / "a.txt"], tokenizer_folder, tmp_path / "out", workers=1, validation=0, unwrap=True)
    (text,) = texts_in(dataset, "train", load_tokenizer(tokenizer_folder))
    assert text == " ".join(["a line of forty letters, more or less it"] * 40) + "\n\nend"
    assert dataset.split("train").bytes == len(text)


def test_progress_ends_at_the_total(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    seen: list[Shown] = []
    dataset = build([corpus], tokenizer_folder, tmp_path / "out", 1, 0.1, show=into(seen), unit_bytes=4000)
    size = sum(path.stat().st_size for path in corpus.iterdir())
    tokens = sum(dataset.split(name).tokens for name in dataset.splits)
    assert seen[0] == (0, "0 tokens", size)
    assert seen[-1] == (size, f"{count(tokens)} tokens", size)


def test_a_file_is_named_once_where_text_is_held_out(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    """Its documents are told apart by their place alone, so one would be held out here and trained on there."""
    one = min(corpus.iterdir())
    (tmp_path / "link.txt").symlink_to(one)
    for again in (corpus, one, tmp_path / "link.txt"):
        with pytest.raises(DataError, match=f"{one}: --input leads to it twice"):
            build([one, again], tokenizer_folder, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()
    single, double = (
        build([one] * times, tokenizer_folder, tmp_path / f"out{times}", workers=1, validation=0).split("train")
        for times in (1, 2)
    )
    assert double.tokens == 2 * single.tokens


def test_a_finished_build_is_left_alone(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build([corpus], tokenizer_folder, tmp_path / "out", workers=1)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    build([corpus], tmp_path / "out" / "tokenizer", tmp_path / "out", workers=1)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    assert capsys.readouterr().err == f"{tmp_path / 'out'}: up to date, nothing to do\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("validation", "made with --validation=0.01 already, and this is with --validation=0.2"),
        ("unwrap", "made without --unwrap already, and this is with --unwrap"),
        ("split_sentences", "made without --sentences already, and this is with --sentences of"),
        ("text_key", "made without --text-key already, and this is with --text-key=body"),
        ("tokenizer", "of another tokenizer already"),
        ("more", "of other inputs already: corpus;"),
        ("longer", "of another corpus already: "),
        ("time", "of other inputs already: since then a file has got another name, size or time of change"),
    ],
)
def test_a_finished_build_of_something_else_is_refused(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, change: str, words: str
) -> None:
    build([corpus], tokenizer_folder, tmp_path / "out", workers=1)
    before = content(tmp_path / "out")
    options: dict[str, Any] = {"validation": 0.2, "unwrap": True, "split_sentences": True, "text_key": "body"}
    inputs = [corpus, "python-docs"] if change == "more" else [corpus]
    if change == "tokenizer":
        tokenizer_folder = tmp_path / "other"
        train_tokenizer([corpus], tokenizer_folder, 310)
    elif change == "longer":
        (corpus / "book-99.txt").write_text("More.")
    elif change == "time":
        os.utime(corpus / "book-00.txt", ns=(1, 1))
    with pytest.raises(DataError) as caught:
        build(inputs, tokenizer_folder, tmp_path / "out", 1, **{key: options[key] for key in options if key == change})
    assert f"{tmp_path / 'out'}: holds a dataset {words}" in str(caught.value)
    assert str(caught.value).endswith("; choose another --out or remove it")
    assert content(tmp_path / "out") == before


def test_finished_parts_are_used_again(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = content(build([corpus], tokenizer_folder, tmp_path / "whole", workers=1, unit_bytes=3000).folder)

    def stop(done: float, _: str, total: float) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        build([corpus], tokenizer_folder, out, 1, show=stop, unit_bytes=3000)
    (parts,) = (out / ".parts").iterdir()
    kept = sorted(parts.iterdir())
    assert len(kept) >= 3
    (kept[0] / "tokens.bin").write_bytes(b"")  # a damaged one is made again
    seen: list[Shown] = []
    build([corpus], tokenizer_folder, out, 1, show=into(seen), unit_bytes=3000)
    assert 0 < seen[0][0] < seen[0][2]
    assert content(out) == expected


def test_what_names_a_build_is_computed_once(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of n inputs, each a unit, it is the work of n files: for each unit it would be that of n * n."""
    files = [tmp_path / f"{number}.txt" for number in range(20)]
    for number, file in enumerate(files):
        file.write_text(f"kalo {number}")
    asked: list[int] = []
    described = build_module.Options.described
    monkeypatch.setattr(build_module.Options, "described", lambda options: asked.append(1) or described(options))
    build(files, tokenizer_folder, tmp_path / "out", workers=1)
    assert len(asked) == 2, "for the key and for dataset.json"


def test_a_tokenizer_that_another_replaces_meanwhile(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    place, out = tmp_path / "tokenizer", tmp_path / "out"
    shutil.copytree(tokenizer_folder, place)

    def replace_it(done: float, *_: object) -> None:
        if done:
            shutil.rmtree(place)
            train_tokenizer([corpus], place, 320)

    with pytest.raises(DataError, match="another tokenizer than when the build began; run again"):
        build([corpus], place, out, workers=1, show=replace_it)
    assert not (out / "dataset.json").exists()
    assert not (out / "tokenizer").exists()


def test_leftovers_of_another_build_are_removed(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    def stop(_: float, words: str, total: float) -> None:
        if words != "0 tokens":
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        build([corpus], tokenizer_folder, out, 1, show=stop, unit_bytes=3000)
    (out / "train-00007.bin").write_bytes(b"x")
    (out / ".tokenizer.0a1b2c3d.tmp").mkdir()
    (out / "notes.md").write_text("mine")
    build([corpus], tokenizer_folder, out, workers=1, validation=0.2)
    names = {path.name for path in out.iterdir()}
    assert "notes.md" in names
    assert not names & {".parts", "train-00007.bin", ".tokenizer.0a1b2c3d.tmp"}


def test_files_in_the_way_are_not_removed(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(tokenizer_folder, out / "tokenizer")
    with pytest.raises(DataError, match=r"--out=.* holds the tokenizer itself"):
        build([corpus], out / "tokenizer", out, workers=1)
    with pytest.raises(DataError, match="out/tokenizer: is in the way"):
        build([corpus], tokenizer_folder, out, workers=1)
    load_tokenizer(out / "tokenizer")
    with pytest.raises(DataError, match=r"--out=.* is the --input itself"):
        build([corpus.parent], tokenizer_folder, corpus.parent, workers=1)


def test_out_is_a_file(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(DataError, match=r"--out=.* is a file; choose a folder"):
        build([corpus], tokenizer_folder, tmp_path / "out")


def test_only_one_build_writes_a_folder(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def second(*_: object) -> None:
        build([corpus], tokenizer_folder, out, workers=1)

    with pytest.raises(DataError, match="another build writes this folder"):
        build([corpus], tokenizer_folder, out, 1, show=second)


@pytest.mark.parametrize(
    ("texts", "message"),
    [([], "no text in there"), (["", "\ufeff"], "no text in there"), (["x"], "too little text to train on")],
)
def test_too_little_text(tmp_path: Path, tokenizer_folder: Path, texts: list[str], message: str) -> None:
    (tmp_path / "in").mkdir()
    for number, text in enumerate([*texts, ""]):
        (tmp_path / "in" / f"{number}.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        build([tmp_path / "in"], tokenizer_folder, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_of_others_stays(tmp_path: Path, tokenizer_folder: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(DataError, match="too little text"):
        build([tmp_path / "x.txt"], tokenizer_folder, tmp_path / "out", workers=1)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes"]


@pytest.mark.parametrize("values", [{"validation": 1.0}, {"validation": -0.1}, {"workers": 0}])
def test_bad_options(corpus: Path, tokenizer_folder: Path, tmp_path: Path, values: dict[str, float]) -> None:
    (name,) = values
    with pytest.raises(DataError, match=f"--{name}="):
        build([corpus], tokenizer_folder, tmp_path / "out", **values)  # type: ignore[arg-type]


def test_a_full_disk_leaves_nothing_that_looks_finished(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(build_module, "write_json", full)
        with pytest.raises(OSError, match="No space left"):
            build([corpus], tokenizer_folder, tmp_path / "out", workers=1)
    with pytest.raises(DataError, match="not a dataset"):
        Dataset(tmp_path / "out")
    build([corpus], tokenizer_folder, tmp_path / "out", workers=1)
    build([corpus], tokenizer_folder, tmp_path / "other", workers=1)
    assert content(tmp_path / "out") == content(tmp_path / "other")


def test_a_bad_file_is_one_line_from_any_worker(tokenizer_folder: Path, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", documents=4)
    (corpus / "book-02.txt").write_bytes(b"fine\n\xff")
    for workers in (1, 2):
        with pytest.raises(DataError, match=r"book-02\.txt: byte 5 is not UTF-8") as caught:
            build([corpus], tokenizer_folder, tmp_path / "out", workers=workers, unit_bytes=1000)
        assert len(caught.value.problems) == 1


def test_rows_without_text_are_left_out_alike_in_every_format(
    tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same shards of JSON lines and Parquet, and a line that counts what is not in them."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = ["One document.", None, "", "Another document."]
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    made = []
    for kind in ("parquet", "jsonl"):
        build([tmp_path / f"a.{kind}"], tokenizer_folder, tmp_path / kind, workers=1, validation=0.5)
        assert "leaves out 2 rows without text (no `text`, null, NaN or empty)" in capsys.readouterr().err
        made.append({path.name: path.read_bytes() for path in (tmp_path / kind).glob("*.bin")})
    assert made[0] == made[1]


def test_a_key_that_no_line_has_is_another_one(tokenizer_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"words": "x"}\n')
    with pytest.raises(DataError, match=r"no text in there; .* by --text-key"):
        build([tmp_path / "a.jsonl"], tokenizer_folder, tmp_path / "out", workers=1)
