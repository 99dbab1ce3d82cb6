"""Every task's official files, read as its preset says, against sequences written out by hand from the paper.

S start, D delimiter, E extract; a word is a token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import ModelConfig, TaskConfig, load
from gpt1_ds.data.tokenizers.base import SpecialIds
from gpt1_ds.tasks.base import Layout, Symbols
from gpt1_ds.tasks.encoding import Encoded, encode, fitted, lay_out
from gpt1_ds.tasks.kinds import Choice, Classification, Regression
from gpt1_ds.tasks.reading import TaskData, read_task
from tests.helpers.words import WordTokenizer


@dataclass
class Case:
    """Files of a task; the sequences, label and other facts of the first row of train."""

    train: str  # its name
    text: str
    sequences: list[str]
    label: str | float
    dev: str = ""  # its name; the text is that of train
    outputs: int = 2


def tsv(*rows: str) -> str:
    """Rows whose cells are written with | between them."""
    return "".join(row.replace("|", "\t") + "\n" for row in rows)


NLI_PAIR = ["S a man sleeps . D a man is awake . E"]
CASES = {
    "cola": Case(
        *("train.tsv", tsv("gj04|1||Our friends won't buy this.", 'gj04|0|*|Him "left.')),
        *(["S Our friends won't buy this. E"], "1", "dev.tsv"),
    ),
    "sst2": Case(
        "train.tsv",
        tsv("sentence|label", 'no wit , "only labored gags |0', "fine |1"),
        ['S no wit , "only labored gags E'],
        "0",
        "dev.tsv",
    ),
    "snli": Case(
        "snli_1.0_train.jsonl",
        "".join(
            json.dumps(
                {
                    "gold_label": label,
                    "sentence1": "a man sleeps .",
                    "sentence2": "a man is awake .",
                    "pairID": f"7{label}",
                }
            )
            + "\n"
            for label in ("contradiction", "-", "neutral", "entailment")
        ),
        *(NLI_PAIR, "contradiction", "snli_1.0_dev.jsonl", 3),
    ),
    "mnli": Case(
        "train.tsv",
        tsv(
            "index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|sentence2_parse"
            "|sentence1|sentence2|label1|gold_label",
            "0|3|3n|slate|( a )|( b )|(R a)|(R b)|a man sleeps .|a man is awake .|neutral|neutral",
            "1|4|4n|slate|( a )|( b )|(R a)|(R b)|x|y|entailment|entailment",
        ),
        *(NLI_PAIR, "neutral", "dev_matched.tsv", 3),
    ),
    "qnli": Case(
        *(
            "train.tsv",
            tsv("index|question|sentence|label", "0|who won ?|she did .|entailment", "1|q|s|not_entailment"),
        ),
        *(["S who won ? D she did . E"], "entailment", "dev.tsv"),
    ),
    "rte": Case(
        "train.tsv",
        tsv("index|sentence1|sentence2|label", "0|a man sleeps .|a man is awake .|not_entailment", "1|x|y|entailment"),
        *(NLI_PAIR, "not_entailment", "dev.tsv"),
    ),
    "wnli": Case(
        *("train.tsv", tsv("index|sentence1|sentence2|label", "0|a man sleeps .|a man is awake .|0", "1|x|y|1")),
        *(NLI_PAIR, "0", "dev.tsv"),
    ),
    "scitail": Case(
        "tsv_format/scitail_1.0_train.tsv",
        tsv("a man sleeps .|a man is awake .|entails", "x|y|neutral"),
        NLI_PAIR,
        "entails",
        "tsv_format/scitail_1.0_dev.tsv",
    ),
    "mrpc": Case(
        "train.tsv",
        "\ufeff" + tsv("Quality|#1 ID|#2 ID|#1 String|#2 String", '1|70|71|he said " yes .|yes , he said', "0|1|2|x|y"),
        ['S he said " yes . D yes , he said E', 'S yes , he said D he said " yes . E'],
        *("1", "dev.tsv"),
    ),
    "qqp": Case(
        "train.tsv",
        tsv("id|qid1|qid2|question1|question2|is_duplicate", "5|1|2|how ?|why ?|0", "6|3|4|x|y|1", "broken|row"),
        ["S how ? D why ? E", "S why ? D how ? E"],
        *("0", "dev.tsv"),
    ),
    "stsb": Case(
        "train.tsv",
        tsv(
            "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score",
            "0|news|MSR|2012|0001|none|none|a plane leaves|a plane lands|2.300",
        ),
        ["S a plane leaves D a plane lands E", "S a plane lands D a plane leaves E"],
        *(2.3, "dev.tsv", 6),
    ),
    "race": Case(
        "train/middle/12.txt",
        json.dumps(
            {
                "article": "Ann ran home .",
                "questions": ["who ran ?", "where ?"],
                "options": [["Ann", "Bob Day", "Cy", "Di"], ["home", "away", "up", "down"]],
                "answers": ["A", "C"],
                "id": "middle12.txt",
            }
        ),
        [
            "S Ann ran home . who ran ? D Ann E",
            "S Ann ran home . who ran ? D Bob Day E",
            "S Ann ran home . who ran ? D Cy E",
            "S Ann ran home . who ran ? D Di E",
        ],
        *("A", "dev/middle/3.txt", 1),
    ),
    "story_cloze": Case(
        "cloze_test_val__spring2016 - cloze_test_ALL_val.csv",
        "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,RandomFifthSentenceQuiz1,"
        'RandomFifthSentenceQuiz2,AnswerRightEnding\nab-1,Rick grew up .,"He, sadly, fell .",He rose .,He ran .,'
        '"He is happy, now .",He fell .,1\n' + "".join(f"x{n},story {n},b,c,d,e,f,2\n" for n in range(400)),
        [
            "S Rick grew up . He, sadly, fell . He rose . He ran . D He is happy, now . E",
            "S Rick grew up . He, sadly, fell . He rose . He ran . D He fell . E",
        ],
        *("1", "", 1),
    ),
    "cosmosqa": Case(
        "train.csv",
        "id,context,question,answer0,answer1,answer2,answer3,label\n"
        '3B##1,"It rained , ""hard"" .",why stay ?,None of the above choices .,wet,dry,ill,1\n',
        [
            'S It rained , "hard" . why stay ? D None of the above choices . E',
            'S It rained , "hard" . why stay ? D wet E',
            'S It rained , "hard" . why stay ? D dry E',
            'S It rained , "hard" . why stay ? D ill E',
        ],
        *("1", "valid.csv", 1),
    ),
    "boolq": Case(
        "train.jsonl",
        '{"question": "is it so", "passage": "It is .", "label": true, "idx": 0}\n'
        '{"question": "is it not", "passage": "It is .", "label": false, "idx": 1}\n',
        *(["S It is . D is it so E"], "True", "val.jsonl"),
    ),
    "cb": Case(
        "train.jsonl",
        "".join(
            json.dumps({"premise": "a man sleeps .", "hypothesis": "a man is awake .", "label": label, "idx": idx})
            + "\n"
            for idx, label in enumerate(("contradiction", "neutral", "entailment"))
        ),
        *(NLI_PAIR, "contradiction", "val.jsonl", 3),
    ),
    "wic": Case(
        "train.jsonl",
        '{"word": "bank", "sentence1": "a bank .", "sentence2": "the bank .", "label": false, "idx": 0}\n'
        '{"word": "bank", "sentence1": "a bank .", "sentence2": "a bank !", "label": true, "idx": 1}\n',
        *(["S bank a bank . D the bank . E"], "False", "val.jsonl"),
    ),
    "swag": Case(
        "train.csv",
        ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
        "0,anet,1,He sits . He,He sits .,He,gold,eats .,runs .,sings .,falls .,2\n",
        [f"S He sits . D He {ending} . E" for ending in ("eats", "runs", "sings", "falls")],
        *("2", "val.csv", 1),
    ),
    "multirc": Case(
        "train.jsonl",
        '{"idx": 4, "version": 1.1, "passage": {"text": "It is .", "questions": [{"question": "is it so", "idx": 7, '
        '"answers": [{"text": "yes", "idx": 30, "label": 1}, {"text": "no", "idx": 31, "label": 0}]}]}}\n',
        *(["S It is . D is it so yes E"], "1", "val.jsonl"),
    ),
    "copa": Case(
        "copa-dev.xml",
        '<?xml version="1.0"?>\n<!DOCTYPE copa-corpus SYSTEM "copa.dtd">\n<copa-corpus version="1.0">\n'
        '<item id="1" asks-for="cause" most-plausible-alternative="2">'
        "<p>It fell .</p><a1>Rain .</a1><a2>Wind .</a2></item>"
        '<item id="2" asks-for="effect" most-plausible-alternative="1">'
        "<p>It rose .</p><a1>Up .</a1><a2>On .</a2></item>"
        "</copa-corpus>\n",
        [
            "S It fell . What was the cause of this? D Rain . E",
            "S It fell . What was the cause of this? D Wind . E",
        ],
        *("1", "", 1),
    ),
    "table": Case(
        *("train.csv", 'text,label\n"good, ""very""",yes\nbad,no\n', ['S good, "very" E'], "yes", "dev.csv"),
    ),
}


def read(name: str, case: Case, folder: Path, *words: str) -> TaskData:
    for file in filter(None, (case.train, case.dev)):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(case.text, encoding="utf-8")
    task = load([f"finetune/{name}"], [f"task.path={folder}", *words]).task
    assert task is not None
    return read_task(task)


def shown(encoded: Encoded, tokenizer: WordTokenizer, example: int) -> list[str]:
    C = encoded.sequences
    borders = encoded.offsets[example * C : (example + 1) * C + 1].tolist()
    return [tokenizer.decode(encoded.tokens[a:b]) for a, b in pairwise(borders)]


def test_every_preset_has_a_case() -> None:
    presets = Path(__file__).parents[2] / "configs" / "finetune"
    forms = {"sentences", "text"}  # of any task: tests/unit/tasks/test_sentences.py, test_task_text.py
    tokens = {
        "squad",
        "squad2",
        "record",
        "conll2003",
        "pos",
    }  # tests/unit/tasks/test_span_rows.py, test_tag_rows.py, test_token_examples.py
    texts = {"squad_text", "translation", "summarization"}  # tests/unit/tasks/test_generation.py
    assert {path.stem for path in presets.glob("*.yaml")} == set(CASES) | forms | tokens | texts


@pytest.mark.parametrize("name", CASES)
def test_official_files_become_the_papers_sequences(name: str, tmp_path: Path) -> None:
    case, tokenizer = CASES[name], WordTokenizer()
    data = read(name, case, tmp_path)
    rows = [*data.splits["train"], *data.splits["dev"]]
    (example,) = {row for row in rows if row.label == case.label or row.score == case.label} & {
        row for row in rows if row.texts[0].split()[0] == case.sequences[0].split()[1]
    }
    encoded = encode(data.task, [example], tokenizer, 512)
    assert shown(encoded, tokenizer, 0) == case.sequences
    assert (data.task.sequences, data.task.outputs) == (len(case.sequences), case.outputs)
    if data.task.has_scores:
        assert encoded.targets is not None
        np.testing.assert_allclose(encoded.targets[0], [0, 0, 0.7, 0.3, 0, 0], atol=1e-6)
    else:
        assert data.task.labels[encoded.labels[0]] == case.label


SPECIALS = SpecialIds(unknown=0, eod=1, start=101, delimiter=102, extract=103, cls=201, separator=202)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def cut_to(layout: Layout, texts: list[np.ndarray], choices: list[np.ndarray], limit: int) -> list[np.ndarray]:
    task = (Choice if layout == "choice" else Classification)("made up", layout, ("no", "yes"), ("accuracy",))
    return [row.tokens for row in lay_out(task, texts, choices, SPECIALS, limit)]


def test_what_is_cut_of_a_sequence_of_ten() -> None:
    """Ten tokens: a single text has 8, each of a pair 10 // 2 - 2 = 3."""
    long, other = np.arange(1, 21, dtype=np.int32), np.arange(31, 51, dtype=np.int32)
    (one,) = cut_to("single", [long], [], 10)
    assert one.tolist() == [101, 1, 2, 3, 4, 5, 6, 7, 8, 103]
    (two,) = cut_to("pair", [long, other], [], 10)
    assert two.tolist() == [101, 1, 2, 3, 102, 31, 32, 33, 103]
    first, second = cut_to("both", [long, ids(7)], [], 10)
    assert first.tolist() == [101, 1, 2, 3, 102, 7, 103], "what one text leaves is not given to the other"
    assert second.tolist() == [101, 7, 102, 1, 2, 3, 103]
    endings = cut_to("choice", [long], [other, ids(9)], 10)
    assert [one.tolist() for one in endings] == [[101, 1, 2, 3, 102, 31, 32, 33, 103], [101, 1, 2, 3, 102, 9, 103]]


def test_a_document_gives_way_to_its_question_and_choices() -> None:
    """16 tokens: question and choices have 16 // 4 - 1 = 3, the document 16 - 3 specials - 3 - the longest choice."""
    document, question = np.arange(1, 21, dtype=np.int32), np.arange(31, 41, dtype=np.int32)
    made = cut_to("choice", [document, question], [ids(71), ids(72, 73)], 16)
    assert [one.tolist() for one in made] == [
        [101, 1, 2, 3, 4, 5, 6, 7, 8, 31, 32, 33, 102, 71, 103],
        [101, 1, 2, 3, 4, 5, 6, 7, 8, 31, 32, 33, 102, 72, 73, 103],
    ]


def test_the_originals_numbers() -> None:
    long = np.ones(600, dtype=np.int32)
    assert len(cut_to("pair", [long, long], [], 512)[0]) == 254 + 254 + 3


@pytest.mark.parametrize("limit", [8, 9, 10, 11, 16, 33, 512])
def test_nothing_is_longer_than_the_limit(limit: int) -> None:
    long = np.ones(2000, dtype=np.int32)
    made = [
        *cut_to("single", [long], [], limit),
        *cut_to("both", [long, long], [], limit),
        *cut_to("choice", [long], [long, long[:1]], limit),
        *cut_to("choice", [long, long], [long, long[:1]], limit),
    ]
    for one in made:
        assert len(one) <= limit
        assert (one[0], one[-1]) == (101, 103)
        assert one.dtype == np.int32
        assert (one == 1).sum() >= 1
    assert all((one == 102).sum() == 1 for one in made[1:])


def popped(first: list[int], second: list[int], capacity: int) -> tuple[list[int], list[int]]:
    """What is left of two texts, as the data script of Devlin et al. (2019) cuts them."""
    first, second = first.copy(), second.copy()
    while len(first) + len(second) > capacity:
        (first if len(first) > len(second) else second).pop()
    return first, second


@pytest.mark.parametrize("symbols", ["separator", "two_separators"])
def test_the_longer_text_is_cut_as_in_berts_code(symbols: Symbols) -> None:
    """Every pair of lengths up to 12, at an odd and an even limit; then the layouts of BERT and of RoBERTa."""
    task, specials = Classification("made up", "pair", ("no", "yes"), ("accuracy",), symbols=symbols), SPECIALS
    between = [202] if symbols == "separator" else [202, 202]
    for limit in (13, 14):
        for a, b in np.ndindex(12, 12):
            first, second = list(range(1, a + 1)), list(range(31, 31 + b))
            (row,) = lay_out(task, [ids(*first), ids(*second)], [], specials, limit)
            first, second = popped(first, second, limit - 2 - len(between))
            assert row.tokens.tolist() == [201, *first, *between, *second, 202]
            assert row.second == 1 + len(first) + len(between)


@pytest.mark.parametrize("symbols", ["separator", "two_separators"])
def test_a_choice_of_a_bidirectional_model_keeps_its_question(symbols: Symbols) -> None:
    task = Choice("made up", "choice", ("0", "1"), ("accuracy",), symbols=symbols)
    document, question = np.arange(1, 21, dtype=np.int32), np.arange(31, 41, dtype=np.int32)
    rows = lay_out(task, [document, question], [ids(71), ids(72, 73)], SPECIALS, 17)
    between = [202] if symbols == "separator" else [202, 202]
    kept = [*range(1, 10 if symbols == "separator" else 9), 31, 32, 33]
    assert [row.tokens.tolist() for row in rows] == [
        [201, *kept, *between, 71, 202],
        [201, *kept, *between, 72, 73, 202],
    ]
    assert {row.second for row in rows} == {1 + len(kept) + len(between)}
    (one, two) = lay_out(task, [document], [ids(71), question], SPECIALS, 12)
    assert (len(one.tokens), len(two.tokens)) == (12, 12), "each choice leaves its own document"


@pytest.mark.parametrize("segments", [0, 2])
def test_how_a_bidirectional_model_reads_a_task(segments: int) -> None:
    similar = Regression("made up", "both", (), ("pearson",))
    model = ModelConfig(mask="bidirectional", segments=segments)
    task = fitted(similar, TaskConfig(), model)
    assert (task.layout, task.sequences, task.outputs, task.regression) == ("pair", 1, 1, "value")
    assert task.symbols == ("separator" if segments else "two_separators")
    assert fitted(similar, TaskConfig(regression="classes"), model).outputs == 6
    assert fitted(similar, TaskConfig(), ModelConfig()) == similar
    assert fitted(similar, TaskConfig(regression="value"), ModelConfig()).outputs == 1


def test_a_tokenizer_without_the_symbols_is_refused() -> None:
    task = Classification("cola", "single", ("no", "yes"), ("accuracy",), symbols="separator")
    with pytest.raises(ConfigError, match=r"^task.name=cola needs a token <cls>: the tokenizer has none; train one"):
        lay_out(task, [ids(1)], [], SpecialIds(eod=0), 16)
