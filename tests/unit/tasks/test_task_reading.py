"""From a task section to examples: the real files, official formats, held-out parts, tables of one's own."""

from __future__ import annotations

import json
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.reading import read_task
from tests.helpers.shared_data import shared_data
from tests.helpers.tasks import DEV, ROWS, TABLE, read, section


@pytest.mark.parametrize(
    ("name", "folder", "words", "counts"),
    [
        ("cola", "cola", [], {"train": 8551, "dev": 1043}),
        ("sst2", "sst2/glue", [], {"train": 67349, "dev": 872, "test": 1821}),
        ("sst2", "sst2/sentence_level", [], {"train": 6920, "dev": 872, "test": 1821}),
        ("rte", "rte", [], {"train": 2490, "dev": 277, "test": 3000}),
        ("wnli", "wnli", [], {"train": 635, "dev": 71}),
        ("stsb", "stsb/glue", [], {"train": 5749, "dev": 1500}),
        ("stsb", "stsb", [], {"train": 5749, "dev": 1500, "test": 1379}),
        ("copa", "copa", ["task.dev_fraction=0.2"], {"train": 800, "dev": 200}),
        ("cosmosqa", "cosmosqa", ["task.train=[valid.csv]", "task.dev_fraction=0.2"], {"train": 2388, "dev": 597}),
        ("snli", "nli_slices", ["task.train=[snli_slice_train.json]", "task.dev=[snli_dev.csv]"],
         {"train": 8999, "dev": 9831}),
        ("mnli", "nli_slices", ["task.train=[mnli_slice_train.json]", "task.dev=[mnli_dev_m_mm.csv]"],
         {"train": 8999, "dev": 19647}),
        ("qnli", "nli_slices", ["task.train=[qnli_slice_train.json]", "task.dev=[qnli_v1_dev.csv]"],
         {"train": 8999, "dev": 5732}),
        ("qnli", "nli_slices", ["task.train=[qnli_slice_train.json]", "task.dev=[qnli_v2_dev.tsv]"],
         {"train": 8999, "dev": 5463}),
        ("scitail", "nli_slices/scitail_dev.csv", ["task.dev_fraction=0.1"], {"train": 1913, "dev": 213}),
    ],
)  # fmt: skip
def test_real_files(name: str, folder: str, words: list[str], counts: dict[str, int]) -> None:
    data = read_task(section(shared_data(folder), f"task.name={name}", *words))
    assert {split: len(rows) for split, rows in data.splits.items()} == counts


def test_real_labels() -> None:
    cola = read_task(section(shared_data("cola"), "task.name=cola"))
    assert Counter(row.label for row in cola.splits["train"]) == {"1": 6023, "0": 2528}
    rte = read_task(section(shared_data("rte"), "task.name=rte"))
    assert Counter(row.label for row in rte.splits["train"]) == {"entailment": 1249, "not_entailment": 1241}
    assert {row.label for row in rte.splits["test"]} == {None}
    assert [row.id for row in rte.splits["test"]] == [str(number) for number in range(3000)]
    copa = read_task(section(shared_data("copa"), "task.name=copa", "task.dev_fraction=0.2"))
    assert Counter(row.label for rows in copa.splits.values() for row in rows) == {"0": 506, "1": 494}
    held = {tuple(sorted(row.choices)) for row in copa.splits["dev"]}
    assert not held & {tuple(sorted(row.choices)) for row in copa.splits["train"]}, "mirrored items stay together"


def test_stsb_is_the_same_in_both_forms() -> None:
    one = read_task(section(shared_data("stsb/glue"), "task.name=stsb")).splits["train"]
    two = read_task(section(shared_data("stsb"), "task.name=stsb")).splits["train"]
    assert [row.score for row in one] == [row.score for row in two]


MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


def test_mrpcs_pair_of_files_gets_a_dev_split(tmp_path: Path) -> None:
    rows = [f'{n % 2}\t{n}\t{n + 9}\ta {n}\tb "{n}\n' for n in range(4076)]
    (tmp_path / "msr_paraphrase_train.txt").write_text("\ufeff" + MRPC + "".join(rows))
    (tmp_path / "msr_paraphrase_test.txt").write_text(MRPC + "1\t1\t2\tone\ttwo\n")
    drawn = read(tmp_path, "task.name=mrpc")
    assert {split: len(rows) for split, rows in drawn.splits.items()} == {"train": 3668, "dev": 408, "test": 1}
    assert drawn.notes == ("mrpc: 408 of train are held out as dev; dev_ids.tsv beside its files would name the "
                           "official ones",)  # fmt: skip
    assert read(tmp_path, "task.name=mrpc").splits == drawn.splits
    (tmp_path / "dev_ids.tsv").write_text("3\t12\n5\t14\n7\t1\n")  # the last pair is none of train's
    listed = read(tmp_path, "task.name=mrpc").splits
    assert [row.texts for row in listed["dev"]] == [("a 3", 'b "3'), ("a 5", 'b "5')]
    assert len(listed["train"]) == 4074
    assert not {row.texts for row in listed["train"]} & {row.texts for row in listed["dev"]}
    assert len(read(tmp_path, "task.name=mrpc", "task.dev_fraction=0.5").splits["dev"]) == 2038, "what is asked for"


def test_qqp_in_the_columns_of_its_copies(tmp_path: Path) -> None:
    rows = "text_a\ttext_b\tlabel\nIs it?\tIs it so?\t1\nIs it?\tWho?\t0\n"
    read_rows = read(tmp_path, "task.name=qqp", train_tsv=rows, dev_tsv=rows).splits["dev"]
    assert [(row.texts, row.label) for row in read_rows] == [(("Is it?", "Is it so?"), "1"), (("Is it?", "Who?"), "0")]


def test_story_cloze_is_split_as_in_the_authors_code(tmp_path: Path) -> None:
    from sklearn import model_selection as selection

    header = "InputStoryid," + ",".join(f"InputSentence{n}" for n in (1, 2, 3, 4))
    header += ",RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding\n"
    text = header + "".join(f"{n},story {n},b,c,d,e,f,{1 + n % 2}\n" for n in range(1871))
    (tmp_path / "cloze_test_val__spring2016 - cloze_test_ALL_val.csv").write_text(text)
    splits = read(tmp_path, "task.name=story_cloze").splits
    train, dev = selection.train_test_split(list(range(1871)), test_size=374, random_state=3535999445)
    assert (len(train), len(dev)) == (1497, 374)
    assert [row.id for row in splits["dev"]] == [str(number) for number in sorted(dev)]
    assert [row.id for row in splits["train"]] == [str(number) for number in sorted(train)]


def test_rows_without_an_agreed_label_are_left_out(tmp_path: Path) -> None:
    rows = "gold_label\tsentence1\tsentence2\nneutral\ta\tb\n-\tc\td\nentailment\te\tf\n"
    data = read(tmp_path, "task.name=snli", train_tsv=rows, dev_tsv=rows, test_tsv=rows)
    assert {split: len(found) for split, found in data.splits.items()} == {"train": 2, "dev": 2, "test": 3}
    assert data.splits["test"][1].label is None
    assert data.notes[0] == "snli train: 1 rows have no agreed label and are left out"


def test_a_table_of_your_own(tmp_path: Path) -> None:
    data = read(tmp_path, *TABLE, train_csv=ROWS, dev_csv="label,text\nyes,x\n")
    assert (data.task.labels, data.task.layout, data.task.outputs) == (("no", "yes"), "single", 2)
    assert data.task.metrics == ("accuracy", "f1", "matthews")
    assert (data.splits["dev"][0].texts, data.splits["dev"][0].id) == (("x",), "0")


def test_a_table_without_header_or_of_other_kinds(tmp_path: Path) -> None:
    words = [
        "task.name=table",
        "task.kind=regression",
        "task.columns={text: 0, text2: 1, label: 2}",
        "task.header=false",
    ]
    data = read(tmp_path, *words, "task.score_range=[0,1]", train_tsv="a\tb\t0.5\nc\td\t1\n", dev_tsv="a\tb\t0\n")
    assert (data.task.layout, data.task.outputs, data.splits["train"][0].score) == ("both", 6, 0.5)
    words = ["task.name=table", "task.kind=choice", "task.columns={text: q, label: right, choices: [options]}"]
    lines = '{"q": "one or two", "options": ["one", "two", "three"], "right": 2}\n'
    data = read(tmp_path, *words, "task.train=[c.jsonl]", "task.dev=[d.jsonl]", c_jsonl=lines, d_jsonl=lines)
    assert (data.task.labels, data.task.sequences, data.splits["train"][0].label) == (("0", "1", "2"), 3, "2")
    words = [
        "task.name=table",
        "task.kind=choice",
        "task.labels=[l,r]",
        "task.columns={text: q, label: x, choices: [a, b]}",
    ]
    data = read(
        tmp_path,
        *words,
        "task.train=[e.csv]",
        "task.dev=[f.csv]",
        e_csv="q,a,b,x\n1,2,3,r\n",
        f_csv="q,a,b,x\n1,2,3,l\n",
    )
    assert (data.task.labels, data.splits["train"][0].label) == (("l", "r"), "r")


def test_numbers_as_classes_are_in_order(tmp_path: Path) -> None:
    rows = "text,label\n" + "".join(f"x,{n}\n" for n in (10, 9, 2))
    assert read(tmp_path, *TABLE, train_csv=rows, dev_csv=rows).task.labels == ("2", "9", "10")


def test_a_part_is_held_out_whatever_the_seed(tmp_path: Path) -> None:
    words = [*TABLE, "task.dev_fraction=0.25"]
    one = read(tmp_path, *words, train_csv=ROWS)
    assert one == read(tmp_path, *words, "run.seed=7")
    assert {split: len(rows) for split, rows in one.splits.items()} == {"train": 30, "dev": 10}
    assert one.notes == ("table: 10 of train are held out as dev",)
    same = "text,label\n" + "".join(f"text {n // 4},{'yes' if n % 2 else 'no'}\n" for n in range(40))
    splits = read(tmp_path, *words, train_csv=same).splits
    assert not {row.texts for row in splits["train"]} & {row.texts for row in splits["dev"]}


def test_a_cap_on_training_examples(tmp_path: Path) -> None:
    words = [*TABLE, "task.dev_fraction=0.25"]
    some = read(tmp_path, *words, "task.train_examples=12", train_csv=ROWS).splits["train"]
    more = read(tmp_path, *words, "task.train_examples=20").splits["train"]
    assert len(some) == 12
    assert set(some) < set(more), "caps nest"


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text(ROWS)
    assert len(read(tmp_path / "all.csv", *TABLE, "task.dev_fraction=0.5").splits["dev"]) == 20


def test_a_chosen_metric_comes_first(tmp_path: Path) -> None:
    data = read(tmp_path, *TABLE, "task.metric=f1", train_csv=ROWS, dev_csv=DEV)
    assert data.task.metrics == ("f1", "accuracy", "matthews")


def test_a_header_in_test_only(tmp_path: Path) -> None:
    """CoLA's train and dev have none."""
    rows = "gj04\t1\t\tfine .\ngj04\t0\t*\tnot fine .\n"
    splits = read(
        tmp_path, "task.name=cola", train_tsv=rows, dev_tsv=rows, test_tsv="index\tsentence\n0\tso ?\n"
    ).splits
    assert (splits["test"][0].texts, splits["test"][0].label, splits["test"][0].id) == (("so ?",), None, "0")
    assert [row.id for row in splits["train"]] == ["0", "1"]


def test_mnli_has_two_dev_and_two_test_splits(tmp_path: Path) -> None:
    rows = "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n1\tc\td\tentailment\n"
    for name in ("train", "dev_matched", "dev_mismatched"):
        (tmp_path / f"{name}.tsv").write_text(rows)
    for name in ("test_matched", "test_mismatched"):
        (tmp_path / f"{name}.tsv").write_text("index\tsentence1\tsentence2\n9\ta\tb\n")
    splits = read(tmp_path, "task.name=mnli").splits
    assert list(splits) == ["train", "dev", "dev_mm", "test", "test_mm"]
    assert (splits["test_mm"][0].id, splits["test_mm"][0].label) == ("9", None)


def test_race_has_groups(tmp_path: Path) -> None:
    passage = {
        "article": "a b",
        "questions": ["q _ ?"],
        "options": [["1", "2", "3", "4"]],
        "answers": ["D"],
    }
    for split in ("train", "dev", "test"):
        for group in ("middle", "high"):
            (tmp_path / split / group).mkdir(parents=True)
            (tmp_path / split / group / "1.txt").write_text(json.dumps(passage | {"id": f"{group}1.txt"}))
    splits = read(tmp_path, "task.name=race").splits
    assert [row.group for row in splits["dev"]] == ["middle", "high"]
    assert list(splits) == ["train", "dev", "test"]


class FakeSplit(list[dict[str, Any]]):
    def __init__(self, rows: list[dict[str, Any]], **names: list[str]) -> None:
        super().__init__(rows)
        self.features = {key: types.SimpleNamespace(names=names[key]) if key in names else object() for key in rows[0]}
        self.column_names = list(rows[0])


def test_the_datasets_library_as_a_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ["entailment", "neutral", "contradiction"]
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in (2, 0, -1)]
    asked: list[tuple[str, ...]] = []

    def load_dataset(*words: str) -> dict[str, FakeSplit]:
        asked.append(words)
        return {"train": FakeSplit(rows, label=names), "validation": FakeSplit(rows[:1], label=names)}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    data = read_task(section(Path("datasets:nyu/snli:plain"), "task.name=snli"))
    assert asked == [("nyu/snli", "plain")]
    assert [row.label for row in data.splits["train"]] == ["contradiction", "entailment"]
    assert "test" not in data.splits
    with pytest.raises(DataError, match="has no split extra, only train, validation"):
        read_task(section(Path("datasets:nyu/snli"), "task.name=snli", "task.test=[extra]"))


def test_the_datasets_library_is_missing_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'gpt1-ds\[data\]'"):
        read_task(section(Path("datasets:glue:cola"), "task.name=cola"))

    def load_dataset(*words: str) -> None:
        raise ConnectionError("no network\nmore")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(DataError, match=r"cannot load it \(ConnectionError: no network\)"):
        read_task(section(Path("datasets:glue:cola"), "task.name=cola"))


def test_half_of_dev_reports_where_no_test_has_labels(tmp_path: Path) -> None:
    rte = section(shared_data("rte"), "task.name=rte", "task.halves=true")
    data, whole = read_task(rte), read_task(section(shared_data("rte"), "task.name=rte"))
    both = (*data.splits["dev"], *data.splits["half"])
    assert {row.id for row in both} == {row.id for row in whole.splits["dev"]}
    assert len(both) == len(whole.splits["dev"])
    assert 100 < len(data.splits["half"]) < 177
    assert not {row.texts[0] for row in data.splits["dev"]} & {row.texts[0] for row in data.splits["half"]}
    assert f"{len(data.splits['half'])} are reported" in data.notes[-1]
    stsb = read_task(section(shared_data("stsb"), "task.name=stsb", "task.halves=true"))
    assert {split: len(rows) for split, rows in stsb.splits.items()} == {"train": 5749, "dev": 1500, "test": 1379}


def test_some_examples_are_scored(tmp_path: Path) -> None:
    words = ["task.name=rte", "task.halves=true", "task.scored_examples=50"]
    data = read_task(section(shared_data("rte"), *words))
    assert {split: len(rows) for split, rows in data.splits.items()} == {
        "train": 2490,
        "dev": 50,
        "half": 50,
        "test": 3000,
    }
    whole = read_task(section(shared_data("rte"), "task.name=rte", "task.halves=true"))
    assert set(data.splits["half"]) < set(whole.splits["half"])
    assert data.splits["half"] == read_task(section(shared_data("rte"), *words)).splits["half"]


def test_halves_do_not_depend_on_other_examples(tmp_path: Path) -> None:
    def half(count: int) -> set[str]:
        lines = ["text,label", *(f"text {number},{number % 2}" for number in range(count))]
        for name in ("train.csv", "dev.csv"):
            (tmp_path / name).write_text("\n".join(lines) + "\n")
        words = ["task.train=[train.csv]", "task.dev=[dev.csv]", "task.halves=true", *TABLE]
        return {row.texts[0] for row in read(tmp_path, *words).splits["half"]}

    assert half(40) == {text for text in half(60) if int(text.split()[1]) < 40}
    (tmp_path / "one.csv").write_text("text,label\na,0\n")
    with pytest.raises(DataError, match=r"dev: 1 examples are too few for task.halves=true"):
        read(tmp_path, "task.train=[train.csv]", "task.dev=[one.csv]", "task.halves=true", *TABLE)


def test_superglue_files(tmp_path: Path) -> None:
    """What its rows say is in tests/golden/test_task_layouts.py; here ids, and test without labels."""
    row = {"question": "is it", "passage": "It is."}
    labelled = [json.dumps({**row, "label": label, "idx": number}) + "\n" for label, number in ((True, 3), (False, 9))]
    files = {"train_jsonl": "".join(labelled), "val_jsonl": labelled[0], "test_jsonl": json.dumps({**row, "idx": 3})}
    data = read(tmp_path, "task.name=boolq", **files)
    found = [(one.id, one.label) for split in ("dev", "test") for one in data.splits[split]]
    assert found == [("3", "True"), ("3", None)]


def test_endings_of_swag_that_nothing_begins(tmp_path: Path) -> None:
    rows = "sent1,sent2,ending0,ending1,ending2,ending3,label\nHe sits.,,eats.,runs.,sings.,falls.,2\n"
    (one,) = read(tmp_path, "task.name=swag", train_csv=rows, val_csv=rows).splits["train"]
    assert one.choices == ("eats.", "runs.", "sings.", "falls.")
