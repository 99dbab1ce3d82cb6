"""`data build --sentences`: the same tokens with the borders of sentences, whatever the workers and the cuts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.config import load
from gpt1_ds.data import build as builder
from gpt1_ds.data import parts
from gpt1_ds.data.build import build
from gpt1_ds.data.dataset import Dataset, hash_data
from gpt1_ds.data.pairs import Pairs
from gpt1_ds.data.sentence_data import FullSentences
from gpt1_ds.data.sentences import Sentences
from gpt1_ds.data.shards import Shard
from gpt1_ds.data.sources import open_data
from gpt1_ds.data.splitter import SPLITTER_VERSION, borders
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.tokenizers.train import Model, train_tokenizer
from gpt1_ds.data.verify import verify_dataset
from tests.unit.data.corpora import content, sentences, write_corpus
from tools.families import FAMILIES

BOOKS = Path(__file__).parents[4] / "shared" / "data" / "books"


def documents_in(dataset: Dataset, name: str, tokenizer: Tokenizer) -> list[list[str]]:
    """The sentences of each document with text."""
    stream = dataset.split(name)
    found = Sentences(stream)
    documents = []
    for first, stop in zip(found.first_D, found.stop_D, strict=True):
        starts, ends = found.spans(np.arange(first, stop))
        documents.append([tokenizer.decode(stream.read(a, b - a)) for a, b in zip(starts, ends, strict=True)])
    return documents


def split(text: str) -> list[str]:
    return [text[begin:end] for begin, end in pairwise([0, *borders(text), len(text)])]


@pytest.fixture
def paragraphs(tmp_path: Path) -> Path:
    """Documents of several sentences a line, a .jsonl with one-sentence and blank documents."""
    folder = tmp_path / "paragraphs"
    folder.mkdir()
    for number in range(6):
        lines = sentences(60, seed=number)
        text = "\n\n".join(" ".join(lines[at : at + 4]) for at in range(0, len(lines), 4))
        (folder / f"{number}.txt").write_text(text + "\n")
    texts = ["One alone.", "Two of them. Here they are.", "Mr. Hyde alone"]
    (folder / "short.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def test_the_index_holds_sentences_and_documents(paragraphs: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    plain = build([paragraphs], tokenizer_folder, tmp_path / "plain", workers=1, validation=0)
    dataset = build([paragraphs], tokenizer_folder, tmp_path / "out", workers=1, validation=0, split_sentences=True)
    assert content(tmp_path / "out")["train-00000.bin"] == content(tmp_path / "plain")["train-00000.bin"]
    assert dataset.data_hash != plain.data_hash
    assert not plain.split_sentences
    stream, shard = dataset.split("train"), Shard(tmp_path / "out" / "train-00000")
    assert (shard.sequences, len(shard.documents) - 1) == (stream.sentence_counts["sentences"], stream.documents)
    texts = [path.read_text() for path in sorted(paragraphs.glob("*.txt"))]
    texts += [json.loads(line)["text"] for line in (paragraphs / "short.jsonl").read_text().splitlines()]
    assert documents_in(dataset, "train", load_tokenizer(tokenizer_folder)) == [split(text) for text in texts]
    assert stream.sentence_counts == {
        "sentences": sum(len(split(text)) for text in texts),
        "one_sentence_documents": 2,
        "empty_documents": 0,
    }
    for token in (0, stream.tokens // 2, stream.tokens - 1):
        assert stream.documents_of(token, 1) == plain.split("train").documents_of(token, 1)
    description = json.loads(dataset.path.read_text())
    assert description["options"]["split_sentences"] == {"splitter": "rules", "version": SPLITTER_VERSION}
    assert "split_sentences" not in json.loads(plain.path.read_text())["options"]


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_the_same_bytes_for_any_workers_and_after_an_interruption(
    paragraphs: Path, tokenizer_folder: Path, tmp_path: Path, validation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"unit_bytes": 700, "shard_tokens": 501}
    outs = [tmp_path / name for name in ("one", "three", "resumed")]
    build([paragraphs], tokenizer_folder, outs[0], 1, validation, split_sentences=True, **sizes)  # type: ignore[arg-type]
    build([paragraphs], tokenizer_folder, outs[1], 3, validation, split_sentences=True, **sizes)  # type: ignore[arg-type]
    write_part, done = parts.write_part, []

    def killed(folder: Path, *arguments: object) -> object:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(folder)
        return write_part(folder, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(parts, "write_part", killed)
        with pytest.raises(KeyboardInterrupt):
            build([paragraphs], tokenizer_folder, outs[2], 1, validation, split_sentences=True, **sizes)  # type: ignore[arg-type]
    dataset = build([paragraphs], tokenizer_folder, outs[2], 1, validation, split_sentences=True, **sizes)  # type: ignore[arg-type]
    assert content(outs[0]) == content(outs[1]) == content(outs[2])
    assert len(dataset.split("train").shards) > 3
    verify_dataset(outs[0])


@pytest.mark.parametrize("unit_bytes", [300, 1 << 20])
def test_the_tail_of_a_single_document(tokenizer_folder: Path, tmp_path: Path, unit_bytes: int) -> None:
    text = "\n".join(" ".join(sentences(5, seed=number)) for number in range(20))
    (tmp_path / "one.txt").write_text(text)
    dataset = build(
        [tmp_path / "one.txt"], tokenizer_folder, tmp_path / "out", 1, 0.1, unit_bytes=unit_bytes, split_sentences=True
    )
    (train,), (held_out,) = (
        documents_in(dataset, name, load_tokenizer(tokenizer_folder)) for name in ("train", "validation")
    )
    assert "".join(train + held_out) == text
    assert len(train) + len(held_out) in (100, 101)  # one may be cut in two
    verify_dataset(tmp_path / "out")
    with pytest.raises(DataError, match=r"data.text=pairs: .* has fewer than two documents"):
        Pairs(Sentences(dataset.split("train")), 32, "hash", 1)


@pytest.mark.parametrize("kind", ["bpe", "gpt2-bpe", "wordpiece"])
def test_borders_change_no_token(kind: Model, tmp_path: Path) -> None:
    text = "\n".join(sentences(300)) + "".join(f"{one}  {other}\n\n" for one, other in pairwise(sentences(50, seed=3)))
    text += ' \n \n  Indented. \n\n\tBy a tab.\t\n "Quoted."  Mr. Two.   Three.\n \n'
    text += "".join(f"{one}\t\n\n{other} \xa0\n" for one, other in pairwise(sentences(50, seed=4)))
    (tmp_path / "one.txt").write_text(text)
    train_tokenizer([tmp_path / "one.txt"], tmp_path / "tok", vocab_size=450, model=kind)
    for name, with_borders in (("plain", False), ("out", True)):
        build([tmp_path / "one.txt"], tmp_path / "tok", tmp_path / name, 1, 0, split_sentences=with_borders)
    assert content(tmp_path / "out")["train-00000.bin"] == content(tmp_path / "plain")["train-00000.bin"]


def test_a_dataset_of_an_older_splitter_is_named(
    paragraphs: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(builder, "SPLITTER_VERSION", SPLITTER_VERSION - 1)
        build([paragraphs], tokenizer_folder, tmp_path / "out", 1, split_sentences=True)
    verify_dataset(tmp_path / "out")
    with pytest.raises(DataError, match=r"made with --sentences of rules 1 already, and this is .* of rules 2; choose"):
        build([paragraphs], tokenizer_folder, tmp_path / "out", 1, split_sentences=True)


def test_verify_compares_the_counts(paragraphs: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    dataset = build([paragraphs], tokenizer_folder, tmp_path / "out", workers=1, split_sentences=True)
    description = json.loads(dataset.path.read_text())
    description["splits"]["train"]["sentences"]["one_sentence_documents"] += 1
    dataset.path.write_text(json.dumps(description))
    with pytest.raises(DataError, match=r"train lists .* as its sentences; build the dataset again"):
        verify_dataset(tmp_path / "out")


def test_a_damaged_index_is_refused_in_one_line(paragraphs: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    dataset = build([paragraphs], tokenizer_folder, tmp_path / "out", workers=1, validation=0, split_sentences=True)
    path = tmp_path / "out" / "train-00000.idx"
    whole, size = path.read_bytes(), 34
    sequences = Shard(tmp_path / "out" / "train-00000").sequences
    for at in (size + 4, size + 4 * sequences + 8, size + 12 * sequences + 8, size + 12 * sequences):
        path.write_bytes(whole[:at] + b"\xff\xff\xff\x7f" + whole[at + 4 :])
        with pytest.raises(DataError, match=r"build the dataset again"):
            FullSentences(Sentences(Dataset(dataset.folder).split("train")), 32, "hash", 1)


def test_text_of_sentences_needs_borders(paragraphs: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    build([paragraphs], tokenizer_folder, tmp_path / "plain", workers=1)
    config = load(
        [],
        [
            f"data.path={tmp_path / 'plain'}",
            "data.text=full_sentences",
            "objective.kind=masked",
            "model.mask=bidirectional",
        ],
    )
    with pytest.raises(ConfigError, match=r"data.text=full_sentences: .* has no sentence borders; build it again with"):
        open_data(config)


def test_all_that_data_lacks_is_said_at_once(paragraphs: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    """Borders, every symbol, and documents for pairs: not one after the other."""
    words = ["objective.kind=masked", "model.mask=bidirectional", "objective.next_sentence=true", "model.segments=2"]
    words += ["data.text=pairs", "model.context=4"]
    (tmp_path / "one.txt").write_text("One sentence. Another one. " * 200)
    for name, noted in (("plain", False), ("few", True)):
        source = tmp_path / "one.txt" if noted else paragraphs
        build([source], tokenizer_folder, tmp_path / name, 1, 0.1 if noted else 0, split_sentences=noted)
        with pytest.raises(ConfigError) as told:
            open_data(load([], [*words, f"data.path={tmp_path / name}"]))
        expected = [
            *(["has no sentence borders"] if not noted else []),
            *("model.context=4 is too short", "<cls>", "<sep>", "<pad>"),
            *(["its train split has fewer than two", "its validation split has fewer than two"] if noted else []),
            "<mask>",
        ]
        for problem, part in zip(told.value.problems, expected, strict=True):
            assert part in problem
    words = [*FAMILIES["t5"], "model.vocab_size=4", f"data.path={tmp_path / 'plain'}"]
    with pytest.raises(ConfigError) as told:
        open_data(load([], words))
    assert [problem.partition("=")[0] for problem in told.value.problems] == ["model.vocab_size", "objective.kind"]


def test_keys_that_whole_sentences_cannot_have() -> None:
    words = ["objective.kind=masked", "model.mask=bidirectional"]
    with pytest.raises(ConfigError, match=r"data.text=full_sentences has whole sentences: leave data.offsets out"):
        load([], [*words, "data.text=full_sentences", "data.offsets=epoch"])
    with pytest.raises(ConfigError, match=r"objective.copies=2 needs data.offsets=fixed"):
        load([], [*words, "objective.copies=2", "data.offsets=epoch"])
    words += ["objective.next_sentence=true", "model.segments=2"]
    with pytest.raises(ConfigError, match=r"data.unique_tokens cannot cap data.text=pairs"):
        load([], [*words, "data.text=pairs", "data.unique_tokens=100"])


def test_the_command_counts_what_is_too_short(
    paragraphs: Path, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--input", str(paragraphs), "--tokenizer", str(tokenizer_folder), "--out", str(tmp_path / "out")]
    assert main(["data", "build", *words, "--sentences", "--validation", "0"]) == 0
    line = "2 documents have one sentence, too few for a pair, and 0 have none\n"
    assert capsys.readouterr().out.endswith(line)
    assert main(["data", "verify", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.endswith(line)
    words[-1] = str(tmp_path / "split")
    assert main(["data", "build", *words, "--sentences", "--validation", "0.01"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "too small for data.text=pairs" in line]
    assert [line.partition(": too")[0] for line in said] == [f"{tmp_path / 'split'}: validation"]
    assert said[0].endswith("; build it again of more documents, or with a larger --validation")


def test_the_hash_is_of_tokens_and_borders(tokenizer_folder: Path, tmp_path: Path) -> None:
    dataset = build([write_corpus(tmp_path / "corpus", 3)], tokenizer_folder, tmp_path / "out", 1, split_sentences=True)
    description = dataset.description
    found = hash_data(description["splits"], description["dtype"], dataset.tokenizer_fingerprint)
    assert found == dataset.data_hash


@pytest.mark.skipif(not BOOKS.is_dir(), reason="needs the novels of ../shared/data")
def test_rows_of_real_books(tokenizer_folder: Path, tmp_path: Path) -> None:
    files = sorted(BOOKS.glob("*.txt"))[:3]
    plain = build(files, tokenizer_folder, tmp_path / "plain", 1, 0, unwrap=True)
    dataset = build(files, tokenizer_folder, tmp_path / "out", 1, 0, unwrap=True, split_sentences=True)
    assert content(tmp_path / "out")["train-00000.bin"] == content(tmp_path / "plain")["train-00000.bin"]
    found = Sentences(dataset.split("train"))
    assert 60 < plain.split("train").bytes / dataset.split("train").sentence_counts["sentences"] < 180
    for text in (FullSentences(found, 128, "hash", 1), Pairs(found, 128, "hash", 1)):
        spans = text.spans(np.arange(text.rows_per_pass))
        assert spans.row_lengths.max() == 128
        assert spans.row_lengths.mean() > 80
    assert abs(spans.follows_R.mean() - 0.5) < 0.02
