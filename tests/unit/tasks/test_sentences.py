"""Pairs and triplets that sentence vectors are trained on, and the scored pairs that judge them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import load
from gpt1_ds.tasks.encoding import encode
from gpt1_ds.tasks.reading import read_scored, read_task
from tests.helpers.shared_data import shared_data
from tests.helpers.tasks import read, refused, section
from tests.helpers.words import WordTokenizer

HEAD = "premise\thypothesis\tlabel\n"
PAIRS = (
    "a\tb\tentailment\na\tc\tcontradiction\na\td\tentailment\na\te\t2\nf\tg\tneutral\nh\ti\tentailment\nk\tStars\t0\n"
)
STS = "sentence1\tsentence2\tscore\nx\ty\t5.0\nstars\tz\t1.0\n"
KIND = ["task.kind=sentences", "task.name=nli"]


def files(folder: Path) -> list[str]:
    (folder / "sts").mkdir()
    (folder / "sts" / "dev.tsv").write_text(STS)
    return [*KIND, f"task.sts={folder / 'sts'}"]


def test_pairs_with_a_text_that_judges_are_left_out(tmp_path: Path) -> None:
    data = read(tmp_path, *files(tmp_path), train_tsv=HEAD + PAIRS)
    assert [example.texts for example in data.splits["train"]][-1] == ("h", "i")
    assert data.notes == ("nli train: 1 pairs share a text with those of task.sts and are left out",)
    assert (data.task.sequences, data.task.outputs, data.task.loss) == (2, 3, "nli")
    assert [example.score for example in data.splits["dev"]] == [5.0, 1.0]


@pytest.mark.parametrize(("loss", "rows"), [("nli", ["S a E", "S b E"]), ("triplet", ["S a E", "S b E", "S c E"])])
def test_every_text_is_a_sequence_of_its_own(loss: str, rows: list[str], tmp_path: Path) -> None:
    """Of the preset, and with another loss."""
    _, _, sts = files(tmp_path)
    (tmp_path / "train.tsv").write_text(HEAD + PAIRS)
    config = load(["finetune/sentences"], [f"task.path={tmp_path}", f"task.loss={loss}", sts]).task
    assert config is not None
    data, tokenizer = read_task(config), WordTokenizer()
    encoded = encode(data.task, data.splits["train"][:1], tokenizer, 512)
    borders = encoded.offsets.tolist()
    assert [tokenizer.decode(encoded.tokens[a:b]) for a, b in pairwise(borders)] == rows
    judged = encode(data.task.evaluation_task, data.splits["dev"], tokenizer, 512)
    assert judged.targets is not None
    assert (judged.sequences, judged.targets.tolist()) == (2, [[1.0], [pytest.approx(0.2)]])


def test_scored_pairs_of_other_shapes(tmp_path: Path) -> None:
    """A year of SemEval's STS, one of its files, and SICK's columns."""
    year = tmp_path / "2012"
    year.mkdir()
    for name, score in (("OnWN", "4.400"), ("news", "0.0")):
        (year / f"{name}.test.tsv").write_text(f'{score}\tit is "so\tso it is\n')
    found = read_scored(str(year))
    assert list(found) == ["test"]
    assert [(one.texts, one.score) for one in found["test"]] == [(('it is "so', "so it is"), x) for x in (4.4, 0.0)]
    assert list(read_scored(str(year / "news.test.tsv"))) == ["dev"]
    (tmp_path / "SICK.txt").write_text("pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\ta b\tb\t4.5\n")
    (one,) = read_scored(str(tmp_path / "SICK.txt"))["dev"]
    assert (one.texts, one.score) == (("a b", "b"), 4.5)
    assert refused(tmp_path, *KIND, f"task.sts={year}", train_tsv=HEAD + PAIRS) == [
        f"{year}: has no scored pairs as dev; name the folder of STS-B, or a file of such rows"
    ]


def test_triplets_take_every_text_once(tmp_path: Path) -> None:
    data = read(tmp_path, *files(tmp_path), "task.loss=triplet", train_tsv=HEAD + PAIRS)
    assert [example.texts for example in data.splits["train"]] == [("a", "b", "c"), ("a", "d", "e")]
    assert data.task.sequences == 3


def test_ranking_takes_what_is_entailed(tmp_path: Path) -> None:
    data = read(tmp_path, *files(tmp_path), "task.loss=ranking", "train.micro_batch=16", train_tsv=HEAD + PAIRS)
    assert [example.texts[1] for example in data.splits["train"]] == ["b", "d", "i"]


def test_scores_do_without_other_pairs(tmp_path: Path) -> None:
    words = ["task.kind=sentences", "task.name=stsb", "task.loss=cosine"]
    data = read(tmp_path, *words, train_tsv=STS, dev_tsv=STS)
    assert (data.task.has_scores, data.task.labels, len(data.splits["train"])) == (True, (), 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task.name=cola"], "task.name=cola: task.loss=nli reads two texts and a label; use snli, nli, mnli, qnli,"),
        (["task.name=stsb"], "task.name=stsb: task.loss=nli reads two texts and a label; use snli,"),
        (["task.loss=cosine"], "task.name=nli: task.loss=cosine reads two texts and a score; use stsb"),
        (["task.name=rte", "task.loss=triplet"], "task.loss=triplet needs the label contradiction; there are"),
        (["task.sts=none"], "none: no such folder or file; name scored pairs, like the folder of STS-B"),
        (["task.metric=accuracy"], "does not fit a task of kind sentences; choose spearman, pearson"),
        (["task.loss=triplet", "task.train=[few.tsv]"], "no pair is left for task.loss=triplet; use more text"),
    ],
)
def test_what_does_not_fit(words: list[str], message: str, tmp_path: Path) -> None:
    given = {"train_tsv": HEAD + PAIRS, "few_tsv": HEAD + "a\tb\tentailment\nc\td\tneutral\n"}
    if "task.name=rte" in words:
        given = {"train_tsv": "sentence1\tsentence2\tlabel\na\tb\tentailment\nc\td\tnot_entailment\n"}
    (problem,) = refused(tmp_path, *files(tmp_path), *words, **given)
    assert message in problem


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task.sts="], "task.sts is empty; name the scored pairs (STS-B) that judge the vectors of task.loss=nli"),
        (["task.margin=0"], "task.margin=0.0 must be above 0"),
        (
            ["task.label_smoothing=0.1", "task.loss=cosine"],
            "task.label_smoothing=0.1 smooths classes, task.loss=cosine has",
        ),
        (["task.group=1"], "task.group=1 must be at least 2: an example alone has no wrong answers"),
        (["task.dev_fraction=0.1"], "task.dev_fraction=0.1: the scored pairs of task.sts are dev; leave it out"),
        (["task.pooling=cls"], "task.pooling=cls reads nothing of model.mask=causal: its first token sees no other"),
        (["task.loss=ranking", "task.group=5"], "task.group=5 does not divide train.micro_batch=8: no layout may cut"),
        (
            ["task.loss=ranking", "train.micro_batch=auto", "train.global_batch=24"],
            "task.group=16 does not divide train.global_batch=24: no layout may cut a group",
        ),
    ],
)
def test_the_section_says_what_is_wrong(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load([], [*KIND, "task.sts=x", f"task.path={tmp_path}", "train.micro_batch=8", *words])
    (problem,) = caught.value.problems
    assert problem.startswith(message)


def test_a_table_of_pairs(tmp_path: Path) -> None:
    columns = "task.columns={text: q, text2: r, label: s}"
    words = ["task.kind=sentences", "task.name=table", columns, "task.loss=cosine", "task.score_range=[0,1]"]
    data = read(tmp_path, *words, "task.dev_fraction=0.5", train_csv="q,r,s\na,b,0.5\nc,d,1\n")
    assert [len(rows) for rows in data.splits.values()] == [1, 1]
    with pytest.raises(ConfigError, match=r"task.columns.text2 is empty; task.kind=sentences compares two texts"):
        section(tmp_path, *words[:2], "task.columns={text: q, label: s}", *words[3:])


def test_published_files() -> None:
    """SNLI's as the datasets library numbers its labels, and STS-B."""
    folder, pairs = shared_data("snli"), shared_data("stsb")
    words = [*KIND, "task.train=[validation.tsv]", "task.quoting=csv", f"task.sts={pairs}", "task.loss=triplet"]
    data = read(folder, *words)
    assert {split: len(rows) for split, rows in data.splits.items()} == {"train": 2929, "dev": 1500, "test": 1379}
    assert any(": 43 pairs share a text" in note for note in data.notes)
