"""Which tokens a probe scores, with sequences written out by hand: a word is a token, what is scored is behind |."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.config import ProbeConfig
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import import_openai, load_tokenizer
from gpt1_ds.tasks.base import Example
from gpt1_ds.tasks.frame import Frame, causal_frame, masked_frame
from gpt1_ds.tasks.zeroshot import Probe, Question, best_threshold, probe_questions, questions, read_probe, score
from tests.helpers.shared_data import shared_data
from tests.helpers.words import WordTokenizer

STORY = Example("0", ("a b c", "why ?"), ("so", "no d"), label="1")
PAIR = Example("0", ("it is so", "it are so so"), label="0", group="binding")
SCHEMA = Example("0", ("the cup fell on the box since", " is so frail"), ("The cup", "The box", "Bob"), label="1")


def shown(name: str, example: Example, context: int = 64, tokenizer: Tokenizer | None = None) -> list[str]:
    tokenizer = tokenizer or WordTokenizer()
    (question,) = questions(name, [example], tokenizer, causal_frame(tokenizer, context))
    return [
        f"{text(tokenizer, tokens[:-count])} | {text(tokenizer, tokens[-count:])}"
        for tokens, count in zip(question.sequences, question.scored, strict=True)
    ]


def asked_words(name: str, *examples: Example, context: int = 8) -> list[Question]:
    tokenizer = WordTokenizer()
    return questions(name, examples, tokenizer, causal_frame(tokenizer, context))


def text(tokenizer: Tokenizer, tokens: np.ndarray) -> str:
    return tokenizer.decode(tokens).strip()


def test_cola_scores_every_token_of_the_sentence() -> None:
    assert shown("cola", Example("0", ("Bill left .",), label="1")) == ["<eod> | Bill left ."]
    yes, no = asked_words("cola", *(Example("0", ("x",), label=label) for label in "10"))
    assert (yes.label, no.label) == (1, 0)


def test_sst2_scores_the_word_behind_very() -> None:
    example = Example("0", ("a fine film",), label="1")
    assert shown("sst2", example) == ["<eod> a fine film very | negative", "<eod> a fine film very | positive"]
    (question,) = asked_words("sst2", example)
    assert question.label == 1


def test_a_template_scores_what_follows_it() -> None:
    probe = Probe("sst2", "dev", (), (), "x", "Is {text} good ? {text2} It was ", ("a bad film", "good"))
    tokenizer = WordTokenizer()
    example = Example("0", ("so {text2} fine",), label="1")
    (question,) = probe_questions(probe, [example], tokenizer, causal_frame(tokenizer, 64))
    before = "<eod> Is so {text2} fine good ? It was"
    assert [text(tokenizer, tokens) for tokens in question.sequences] == [f"{before} a bad film", f"{before} good"]
    assert (question.scored, question.label) == ((3, 1), 1)
    found = score(probe, [question], np.array([-3.3, -3.0]))
    assert found == {"accuracy": 1.0, "chance": 0.5, "examples": 1}, "sums decide, not means"


def test_choices_score_the_choice_alone() -> None:
    labelled = Example("0", STORY.texts, STORY.choices, label="1")
    assert shown("copa", labelled) == ["<eod> a b c why ? | so", "<eod> a b c why ? | no d"]
    assert shown("story_cloze", Example("0", ("a b .",), ("c", "d"), label="2")) == [
        "<eod> a b . | c",
        "<eod> a b . | d",
    ]
    (question,) = asked_words("race", Example("0", ("a", "b"), ("c", "d", "e", "f"), label="C"))
    assert question.label == 2


def test_schemas_score_what_is_behind_the_pronoun() -> None:
    assert shown("wsc273", SCHEMA) == [
        "<eod> the cup fell on the box since the cup | is so frail",
        "<eod> the cup fell on the box since the box | is so frail",
        "<eod> the cup fell on the box since Bob | is so frail",
    ]
    begins = Example("0", ("It fell .", " broke"), ("the cup", "Bob"), label="0")
    assert shown("pdp", begins) == ["<eod> It fell . The cup | broke", "<eod> It fell . Bob | broke"]
    assert shown("pdp", Example("0", ("", " broke"), ("the cup", "Bob"), label="0"))[0] == "<eod> The cup | broke"


def test_what_is_glued_to_the_pronoun_is_scored_too(tiny_data: Path) -> None:
    tokenizer = load_tokenizer(tiny_data.parent / "tokenizer")
    glued = Example("0", ("We saw the code of", ".  Then"), ("Tom", "the man"), label="0")
    assert shown("wsc273", glued, tokenizer=tokenizer) == [
        "We saw the code of Tom | .  Then",
        "We saw the code of the man | .  Then",
    ]
    (question,) = questions("wsc273", [glued], tokenizer, causal_frame(tokenizer, 64))
    assert question.sequences[0][0] == tokenizer.eod_id


@pytest.mark.parametrize(
    ("name", "example", "context", "wanted"),
    [
        ("cola", Example("0", ("a b c d",), label="1"), 3, ["<eod> | a b c"]),
        ("copa", STORY, 5, ["b c why ? | so", "b c why ? | no d"]),
        ("copa", STORY, 6, ["a b c why ? | so", "a b c why ? | no d"]),
        ("copa", STORY, 7, ["<eod> a b c why ? | so", "<eod> a b c why ? | no d"]),
        ("copa", STORY, 2, ["? | so", "? | no d"]),
        ("copa", STORY, 1, ["? | so", "? | no"]),
        ("pdp", SCHEMA, 5, [f"{x} | is so frail" for x in ("since the cup", "since the box", "box since Bob")]),
        ("wsc273", SCHEMA, 2, ["is | so frail"] * 3),
    ],
)  # fmt: skip
def test_the_beginning_is_cut_and_question_and_answer_stay(
    name: str, example: Example, context: int, wanted: list[str]
) -> None:
    assert shown(name, example, context) == wanted
    (question,) = asked_words(name, example, context=context)
    assert max(map(len, question.sequences)) <= context + 1


@pytest.mark.parametrize(
    ("name", "example", "context", "wanted"),
    [
        ("cola", Example("0", ("a b c d",), label="1"), 64, ["S | a b c d | D"]),
        ("cola", Example("0", ("a b c d",), label="1"), 5, ["S | a b c | D"]),
        ("sst2", Example("0", ("fine",), label="1"), 64, ["S fine very | negative | D", "S fine very | positive | D"]),
        ("copa", STORY, 64, ["S a b c why ? | so | D", "S a b c why ? | no d | D"]),
        ("copa", STORY, 7, ["S c why ? | so | D", "S c why ? | no d | D"]),
        ("copa", STORY, 4, ["S | so | D", "S | no d | D"]),
        ("pdp", SCHEMA, 7, [f"S {x} | is so frail | D" for x in ("the cup", "the box", "since Bob")]),
        ("pdp", SCHEMA, 4, ["S | so frail | D"] * 3),
        ("blimp", PAIR, 64, ["S | it is so | D", "S | it are so so | D"]),
        ("blimp", PAIR, 5, ["S | it is so | D", "S | it are so | D"]),
    ],
)  # fmt: skip
def test_rows_of_a_masked_model_keep_their_symbols(
    name: str, example: Example, context: int, wanted: list[str]
) -> None:
    """S and D stand for [cls] and [separator]; nothing comes before a text."""
    tokenizer = WordTokenizer()
    frame = Frame(context, first=(tokenizer.start_id,), last=(tokenizer.delimiter_id,), mask=0)
    (question,) = questions(name, [example], tokenizer, frame)
    found = [
        " | ".join(text(tokenizer, part) for part in np.split(tokens, [len(tokens) - count - 1, len(tokens) - 1]))
        for tokens, count in zip(question.sequences, question.scored, strict=True)
    ]
    assert found == wanted


def test_what_stands_around_a_text_is_what_the_model_has_seen(sentence_data: Path) -> None:
    tokenizer = load_tokenizer(sentence_data.parent / "tokenizer")
    special = tokenizer.special_ids
    assert masked_frame(tokenizer, 9, in_rows=True) == Frame(
        9, first=(special.cls,), last=(special.separator,), mask=special.mask
    )
    assert masked_frame(tokenizer, 9, in_rows=False) == Frame(9, mask=special.mask)
    with pytest.raises(ConfigError, match="needs a token <mask>: the tokenizer has none; train one with --masks"):
        masked_frame(WordTokenizer(), 9, in_rows=True)


def test_the_vocabulary_of_2018(tmp_path: Path) -> None:
    source = shared_data("gpt1_bpe")
    out = tmp_path / "tokenizer"
    tokenizer = import_openai(source / "encoder_bpe_40000.json", source / "vocab_40000.bpe", out)
    (question,) = questions("sst2", [Example("0", ("Fine",), label="1")], tokenizer, causal_frame(tokenizer, 64))
    assert [tokens.tolist()[-2:] for tokens in question.sequences] == [[963, 9503], [963, 6353]], "very, and one token"
    assert [tokens[0] for tokens in question.sequences] == [40477] * 2, "the line end"
    assert question.scored == (1, 1)


def asked(counts: list[tuple[int, ...]], labels: list[int]) -> list[Question]:
    return [
        Question(tuple(np.zeros(count + 1, dtype=np.int32) for count in part), part, label)
        for part, label in zip(counts, labels, strict=True)
    ]


def probe(name: str) -> Probe:
    return Probe(name, "dev", (), ())


def test_choices_are_compared_by_averages_and_sentiment_by_sums() -> None:
    one = asked([(1, 3)], [1])
    assert score(probe("copa"), one, np.array([-2.0, -3.0]))["accuracy"] == 1, "-2 and -1 a token"
    two = asked([(2, 2)], [1])
    assert score(probe("sst2"), two, np.array([-2.0, -3.0]))["accuracy"] == 0


def test_words_of_unlike_length_are_compared_with_their_own_average() -> None:
    sums = np.array([-9.0, -2.0, -11.0, -1.5])  # by the plain sums the shorter word always wins
    assert score(probe("sst2"), asked([(2, 1)] * 2, [0, 1]), sums)["accuracy"] == 1.0


def test_pairs_are_compared_by_sums_and_phenomena_count_alike() -> None:
    pairs = [replace(one, group=group) for one, group in zip(asked([(2, 3)] * 4, [0] * 4), "aaab", strict=True)]
    found = score(probe("blimp"), pairs, np.array([-3, -2, -2, -3, -1, -2, -5, -6.0]))
    assert found == {"accuracy": (2 / 3 + 1) / 2, "chance": 0.5, "examples": 4, "a": 2 / 3, "b": 1.0}
    assert shown("blimp", PAIR) == ["<eod> | it is so", "<eod> | it are so so"]
    assert asked_words("blimp", PAIR)[0].group == "binding"


def test_equals_share_the_point() -> None:
    four = asked([(1, 1), (2, 1), (1, 1, 1, 1), (1, 1, 1)], [0, 1, 3, 0])
    sums = np.array([-1, -1, -4, -2, -1, -1, -1, -1, -3, -2, -2.0])
    found = score(probe("wsc273"), four, sums)
    assert found["accuracy"] == pytest.approx((1 / 2 + 1 / 2 + 1 / 4 + 0) / 4)
    assert found["chance"] == pytest.approx((1 / 2 + 1 / 2 + 1 / 4 + 1 / 3) / 4)
    assert found["examples"] == 4


def test_cola_by_hand() -> None:
    dev = asked([(2,), (1,), (4,), (1,)], [1, 0, 1, 0])
    train = asked([(1,), (2,), (1,)], [0, 1, 1])
    sums = np.array([-2, -6, -12, -2.5, *(-5, -6, -2)])  # averages -1, -6, -3, -2.5 and -5, -3, -2
    found = score(probe("cola"), dev, sums, train)
    assert found["threshold"] == -4
    assert found["accuracy"] == 3 / 4
    assert found["matthews"] == pytest.approx((2 * 1 - 1 * 0) / np.sqrt(3 * 2 * 2 * 1))
    assert (found["examples"], found["fitted"], found["chance"]) == (4, 3, 0)


def test_the_threshold_is_the_best_of_all() -> None:
    numbers = np.random.default_rng(0)
    for _ in range(50):
        labels = numbers.integers(0, 2, 40)
        values = np.round(numbers.normal(size=40) + labels, 1)  # some are equal
        best = max(matthews_corrcoef(labels, values > t) for t in [values.min() - 1, *values])
        found = matthews_corrcoef(labels, values > best_threshold(values, labels))
        assert found == pytest.approx(max(best, 0))


@pytest.mark.parametrize("labels", [[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
def test_no_threshold_helps(labels: list[int]) -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0])
    assert best_threshold(values, np.array(labels)) < 1
    assert best_threshold(np.full(4, 2.0), np.array(labels)) < 2


def config(name: str, path: Path | str, **limits: int) -> ProbeConfig:
    return ProbeConfig(name=name, path=str(path), **limits)


def test_reading_dev_and_what_is_fitted(tmp_path: Path) -> None:
    rows = "".join(f"x\t{n % 2}\t\tsentence {n}\n" for n in range(20))
    (tmp_path / "train.tsv").write_text(rows)
    (tmp_path / "dev.tsv").write_text(rows)
    found = read_probe(config("cola", tmp_path, limit=5, train_limit=7))
    assert (found.split, len(found.examples), len(found.train)) == ("dev", 5, 7)
    assert found == read_probe(config("cola", tmp_path, limit=5, train_limit=7)), "the same ones each time"
    (tmp_path / "train.tsv").unlink()
    with pytest.raises(DataError, match=r"holds none of train.tsv; or raw/in_domain_train.tsv"):
        read_probe(config("cola", tmp_path))


def test_a_damaged_row_and_a_missing_folder(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nfine\t1\nodd\n")
    with pytest.raises(DataError, match=r"dev.tsv line 3: 1 columns where 2 are expected; mend this row"):
        read_probe(config("sst2", tmp_path))
    with pytest.raises(DataError, match=r"nowhere: no such folder; give the one that holds the files of sst2"):
        read_probe(config("sst2", "nowhere"))


@pytest.mark.parametrize(
    ("name", "folder", "split", "count", "chance"),
    [
        ("cola", "cola", "dev", 1043, 0),
        ("sst2", "sst2/glue", "dev", 872, 1 / 2),
        ("cosmosqa", "cosmosqa", "dev", 2985, 1 / 4),
        ("copa", "copa", "train", 1000, 1 / 2),
        ("wsc273", "winograd", "test", 273, 1 / 2),
        ("pdp", "winograd", "test", 60, (45 / 2 + 12 / 3 + 1 / 4 + 2 / 5) / 60),
        ("blimp", "blimp", "test", 67_000, 1 / 2),
    ],
)
def test_official_files(name: str, folder: str, split: str, count: int, chance: float) -> None:
    found = read_probe(config(name, shared_data(folder)))
    assert (found.split, len(found.examples)) == (split, count)
    if name != "cola":
        all_asked = asked_words(name, *(found.examples if name == "pdp" else found.examples[:600]), context=512)
        sums = np.concatenate([question.scored for question in all_asked]) * -1.0
        scores = score(found, all_asked, sums)
        assert scores["chance"] == pytest.approx(chance)
        if name not in ("sst2", "blimp"):
            assert scores["accuracy"] == pytest.approx(chance), "a model that knows nothing is at chance"
