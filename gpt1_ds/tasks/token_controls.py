"""Scores that spans, tags and written texts have to be compared with: rules that were never trained.

most frequent tag    of each word of train; of other words the most frequent tag of words that train has once
whole paragraph      all of the text
first sentence       of the text
word overlap         the sentence that shares most words with the question, from its first word to its last that the
                     question does not have
source copied        the source as it is
lead of the source   its first three sentences (See et al. 2017)
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from gpt1_ds.tasks.base import ControlAnswers, Task, control_answers
from gpt1_ds.tasks.example import Example, Splits
from gpt1_ds.tasks.token_metrics import objects

FREQUENT, PARAGRAPH, FIRST, OVERLAP = "most frequent tag", "whole paragraph", "first sentence", "word overlap"
COPIED, LEAD = "source copied", "lead of the source"
LEAD_SENTENCES = 3
_SENTENCES = re.compile(r"(?<=[.!?])\s+")
_WORDS = re.compile(r"\w+")


def tag_rules(task: Task, splits: Splits) -> Iterator[ControlAnswers]:
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for example in splits["train"]:
        for word, tag in zip(example.texts, example.tags, strict=True):
            seen[word][tag] += 1
    rare = Counter(tag for tags in seen.values() if tags.total() == 1 for tag in tags)
    every = sum(seen.values(), Counter[str]())
    other = (rare or every).most_common(1)[0][0]
    best = {word: tags.most_common(1)[0][0] for word, tags in seen.items()}
    yield from _on_all(task, splits, FREQUENT, lambda example: tuple(best.get(word, other) for word in example.texts))


def span_rules(task: Task, splits: Splits) -> Iterator[ControlAnswers]:
    yield from _on_all(task, splits, PARAGRAPH, lambda example: example.texts[1])
    yield from _on_all(task, splits, FIRST, lambda example: _SENTENCES.split(example.texts[1])[0])
    yield from _on_all(task, splits, OVERLAP, _nearest)


def written_rules(task: Task, splits: Splits) -> Iterator[ControlAnswers]:
    yield from _on_all(task, splits, COPIED, lambda example: example.texts[-1])
    yield from _on_all(task, splits, LEAD, _lead)


def _lead(example: Example) -> str:
    return " ".join(_SENTENCES.split(example.texts[-1])[:LEAD_SENTENCES])


def _nearest(example: Example) -> str:
    asked = set(_WORDS.findall(example.texts[0].lower()))
    sentence = max(_SENTENCES.split(example.texts[1]), key=lambda one: len(asked & set(_WORDS.findall(one.lower()))))
    new = [word for word in _WORDS.finditer(sentence) if word[0].lower() not in asked]
    return sentence[new[0].start() : new[-1].end()] if new else sentence


def _on_all(task: Task, splits: Splits, name: str, answer: Callable[[Example], object]) -> Iterator[ControlAnswers]:
    return control_answers(task, splits, name, lambda examples: objects([*map(answer, examples)]))
