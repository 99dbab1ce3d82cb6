"""Which tokens a probe scores, with sequences written out by hand: a word is a token, what is scored is behind |."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.probe_scores import score_probe
from gpt1_ds.tasks.questions import (
    Frame,
    Question,
    causal_frame,
    masked_frame,
    probe_questions,
    questions,
    tokens_alone,
)
from gpt1_ds.tasks.zeroshot import Probe
from tests.helpers.published import published
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
    found = score_probe(probe, [question], np.array([-3.3, -3.0]))
    assert found["accuracy"] == 1.0, "sums decide, not means"
    assert found.keys() == {"accuracy", "low", "high", "chance", "examples"}


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
    tokenizer = published("openai", tmp_path / "tokenizer")
    (question,) = questions("sst2", [Example("0", ("Fine",), label="1")], tokenizer, causal_frame(tokenizer, 64))
    assert [tokens.tolist()[-2:] for tokens in question.sequences] == [[963, 9503], [963, 6353]], "very, and one token"
    assert [tokens[0] for tokens in question.sequences] == [40477] * 2, "the line end"
    assert question.scored == (1, 1)


def alone(name: str, example: Example, context: int = 64) -> list[str]:
    """What the control scores."""
    tokenizer = WordTokenizer()
    frame = causal_frame(tokenizer, context)
    (question,) = questions(name, [example], tokenizer, frame)
    found = question.alone(frame)
    assert (found.label, found.group) == (question.label, question.group)
    return [
        f"{text(tokenizer, tokens[:-count])} | {text(tokenizer, tokens[-count:])}"
        for tokens, count in zip(found.sequences, found.scored, strict=True)
    ]


def test_the_control_has_nothing_before_the_answers() -> None:
    assert alone("copa", STORY) == ["<eod> | so", "<eod> | no d"]
    assert alone("copa", STORY, 1) == ["<eod> | so", "<eod> | no"], "cut as in the question"
    assert alone("sst2", Example("0", ("fine",), label="1")) == ["<eod> | negative", "<eod> | positive"]
    assert alone("lambada", Example("0", ("the end of", "it"))) == ["<eod> | it"]
    assert alone("next_sentence", NEXT) == ["<eod> | d e f", "<eod> | g h"]


def test_the_control_of_schemas_scores_the_candidates() -> None:
    assert alone("wsc273", SCHEMA) == ["<eod> | the cup", "<eod> | the box", "<eod> | Bob"]
    begins = Example("0", ("It fell .", " broke"), ("the cup", "Bob"), label="0")
    assert alone("pdp", begins) == ["<eod> | The cup", "<eod> | Bob"], "as the sentence has them"


def test_the_control_keeps_the_symbols_of_rows() -> None:
    tokenizer = WordTokenizer()
    frame = Frame(64, first=(tokenizer.start_id,), last=(tokenizer.delimiter_id,), mask=0)
    for name, example, wanted in [("copa", STORY, ["S so D", "S no d D"]), ("wsc273", SCHEMA, ["S the cup D"])]:
        (question,) = questions(name, [example], tokenizer, frame)
        found = [text(tokenizer, tokens) for tokens in question.alone(frame).sequences]
        assert found[: len(wanted)] == wanted


def test_every_distinct_token_alone() -> None:
    tokenizer = WordTokenizer()
    frame = causal_frame(tokenizer, 64)
    pairs = questions("blimp", [PAIR, Example("1", ("are it so", "it so are"), label="0")], tokenizer, frame)
    rows, row_N, sequence_N = tokens_alone(pairs, frame)
    assert [text(tokenizer, row) for row in rows] == ["<eod> it", "<eod> is", "<eod> so", "<eod> are"]
    said = [[text(tokenizer, rows[row])[6:] for row in row_N[sequence_N == n]] for n in range(4)]
    assert said == [["it", "is", "so"], ["it", "so", "so", "are"], ["it", "so", "are"], ["it", "so", "are"]]
    assert tokens_alone([], frame)[0] == []


PASSAGE = Example("0", ("a b c d e f",))


@pytest.mark.parametrize(("context", "copy"), [(64, "a b c d e f"), (7, "a b c")])
def test_a_passage_is_repeated_as_far_as_it_fits(context: int, copy: str) -> None:
    assert shown("repeat", PASSAGE, context) == [f"<eod> {copy} | {copy}"]
    assert alone("repeat", PASSAGE, context) == [f"<eod> | {copy}"], "the control has it once"


NEXT = Example("0", ("a b .", "\n\nc .", " so it is ."), ("d e f", "g h"), label="0")


@pytest.mark.parametrize(
    ("context", "before"),
    [(64, "a b . c . so it is ."), (13, "c . so it is ."), (9, "so it is ."), (5, "it is .")],
)
def test_the_next_sentence_follows_the_whole_sentences_that_fit(context: int, before: str) -> None:
    found = shown("next_sentence", NEXT, context)
    assert found[0].endswith(f"{before} | d e f")
    assert found[1].endswith(f"{before} | g h")
    assert (context > 5) == found[0].startswith("<eod>"), (
        "half of the context is the text's, the rest is for the answer"
    )
