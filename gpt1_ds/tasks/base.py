"""The two things that every file here speaks of: a task, and one example of it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.architecture.head import HeadSpec, SentenceLoss, TokenKind, head_kind
from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.config.task import Kind

Layout = Literal["single", "pair", "both", "choice", "sentences"]
Symbols = Literal["extract", "separator", "two_separators"]  # the symbols around texts (encoding.py)
Regression = Literal["classes", "value"]
Numbers = NDArray[np.int64] | NDArray[np.float64] | NDArray[np.object_]  # objects: texts, or tuples of tags
Splits = Mapping[str, Sequence["Example"]]
SCORE_CLASSES = 6  # a score is a distribution over the whole numbers 0 to 5 (Tai et al. 2015)
NO_LABEL = -1


@dataclass(frozen=True)
class Example:
    """One row of a file, its texts stripped of surrounding blanks but for the context of a span, which stays as it is
    written. `label`, `score` and `answers` are None where there is none.
    """

    id: str
    texts: tuple[str, ...]  # one text; two; a triplet; document and question; question and context; or words to tag
    choices: tuple[str, ...] = ()
    label: str | None = None  # one of Task.labels
    score: float | None = None  # of a regression, within Task.score_range
    group: str = ""  # metrics are also reported per group: RACE's middle and high
    answers: tuple[tuple[str, int], ...] | None = None  # of a span, and the characters they begin at; (): it has none
    tags: tuple[str, ...] = ()  # of tagging, one for each word
    targets: tuple[str, ...] = ()  # of generation, texts that are right; a model learns to write the first
    source: str = ""  # examples with an equal source belong together when a part is held out; empty: the first text

    @property
    def is_labelled(self) -> bool:
        """Whether its right answer is known."""
        known = (self.label, self.score, self.answers, self.tags or None, self.targets or None)
        return any(one is not None for one in known)


Examples = tuple[Example, ...]


def hash_examples(examples: Sequence[Example]) -> str:
    """Returns the hex sha256 of all that the examples say."""
    return hashlib.sha256(repr(tuple(examples)).encode()).hexdigest()


@dataclass(frozen=True)
class ControlAnswers:
    """The answers of one control (controls.py) to the labelled examples of one split: `gold` and `found` are [N], `ids`
    name the examples, `groups` say which belong together.
    """

    control: str
    split: str
    ids: tuple[str, ...]
    gold: Numbers
    found: Numbers
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task(ABC):
    """Holds what the head, the loss and the metrics need to know; plain values, so that a checkpoint can keep it.

    Each kind of task is a subclass (kinds/), which decides all that depends on the kind.
    """

    name: str
    layout: Layout  # single x; pair a b; both a b and b a; choice one sequence per choice; sentences one per text
    labels: tuple[str, ...]  # names by class number, or of the choices; none for a regression
    metrics: tuple[str, ...]  # the first one chooses the best epoch
    score_range: tuple[float, float] = (0.0, float(SCORE_CLASSES - 1))
    symbols: Symbols = "extract"
    regression: Regression = "classes"  # what the head says of a score: six classes, or the score itself
    loss: SentenceLoss | None = None  # of sentence vectors; cosine knows a score of each pair, the others its label
    answers: tuple[str, ...] = ()  # of a task in text: what may be written, of each class or score; else none
    fields: tuple[str, ...] = ()  # of a task in text: names of an example's texts

    kind: ClassVar[Kind]
    fitting_metrics: ClassVar[tuple[str, ...]]  # all are reported for `table`; the first one chooses the best epoch
    losses: ClassVar[tuple[SentenceLoss | None, ...]] = (None,)
    reads_scores: ClassVar[bool] = False  # whether the label column holds a number
    reads_tokens: ClassVar[bool] = False  # whether every token has a score that counts (token_rows.py)
    token_head: ClassVar[TokenKind | None] = None  # the kind of head of one that reads tokens
    writes_text: ClassVar[bool] = False  # whether an answer is any text (target_rows.py)
    submission: ClassVar[Literal["tsv", "json"]] = "tsv"  # what a file of predictions is

    # What is read

    def told(self, settings: TaskConfig) -> Task:
        """Returns the task with what `settings` say besides."""
        return self

    @classmethod
    def layout_of(cls, has_two_texts: bool) -> Layout:
        """Returns how its texts stand in sequences."""
        return "both" if has_two_texts else "single"

    @classmethod
    def find_labels(cls, known: tuple[str, ...], splits: Splits, path: str) -> tuple[str, ...]:
        """Returns the names of classes or choices: those that are `known`, else what the examples have. Raises
        DataError naming `path` for labels that no class can be made of.
        """
        return known

    @classmethod
    def fit_metrics(cls, metrics: tuple[str, ...], labels: tuple[str, ...], path: str) -> tuple[str, ...]:
        """The `metrics` that such labels can have. Raises DataError naming `path` where the first one is none."""
        return metrics

    def doubts(self, rows: Examples) -> Iterator[str]:
        """Yields what speaks for another kind of task, of training examples whose kind a person chose."""
        return iter(())

    @property
    def has_scores(self) -> bool:
        """Whether an example has a score, and no label."""
        return self.reads_scores

    def gold(self, examples: Sequence[Example]) -> Numbers:
        """[N], the right answers of labelled examples: numbers of classes or choices, or scores."""
        number_of: dict[str | None, int] = {label: number for number, label in enumerate(self.labels)}
        return np.array([number_of[example.label] for example in examples], dtype=np.int64)

    def targets(self, scores_N: NDArray[np.float64]) -> NDArray[np.float32] | None:
        """[N, outputs], what the head is to say of scores; None where labels are learned."""
        return None

    @property
    def line_fields(self) -> tuple[str, str]:
        """Returns what a line to predict calls its texts (lines.py)."""
        return "text", "text2"

    @property
    def groups_are_questions(self) -> bool:
        """Whether a group is the answer options of one question, which are right together or not."""
        return False

    @property
    def group_metrics(self) -> tuple[str, ...]:
        """Returns what is also reported for each group of examples."""
        return self.metrics[:1]

    # What the head gives

    @property
    def in_text(self) -> bool:
        """Whether a language model answers, and no head of the task's own."""
        return self.writes_text or bool(self.answers)

    @property
    def may_refuse(self) -> bool:
        """Whether a question may have no answer."""
        return False

    @property
    def outputs(self) -> int:
        """Columns of the head: classes; of a regression 6, or its value; 1 for a choice, whose softmax is over its
        sequences. In text: answers.
        """
        return len(self.answers) or self._head_outputs

    @property
    def sequences(self) -> int:
        """C, the sequences of one example; in text its source alone."""
        return 1 if self.in_text else self._head_sequences

    @property
    def classes(self) -> int:
        """K, what the softmax is over."""
        return self.outputs

    @property
    def _head_outputs(self) -> int:
        return max(1, len(self.labels))

    @property
    def _head_sequences(self) -> int:
        return 2 if self.layout == "both" else 1

    def head(self, settings: TaskConfig, model: ModelConfig) -> HeadSpec:
        dropout, coefficient = settings.head_dropout, settings.lm_coefficient
        kind = self.token_head or head_kind(model)
        return HeadSpec(self.outputs, self.sequences, self.layout == "choice", dropout, coefficient, kind)

    def predictions(self, scores_NK: NDArray[np.float32]) -> Numbers:
        """Class or choice numbers, or scores, [N] from the head's scores [N, K]; in text from those of answers."""
        numbers: NDArray[np.int64] = np.argmax(scores_NK, axis=1)
        return numbers

    def in_words(self, prediction: Any) -> str:
        """Returns a prediction as GLUE's server reads it."""
        return self.labels[int(prediction)]

    # In text

    def answers_in_text(self, class_names: tuple[str, ...]) -> tuple[str, ...]:
        """Returns all that an answer may be."""
        return class_names

    def text_fields(self) -> tuple[str, ...]:
        """Returns names of an example's texts, for a task whose authors gave none."""
        return ("sentence",) if self.layout == "single" else ("sentence1", "sentence2")

    def source(self, example: Example) -> str:
        """Returns what a model in text reads: the task's name and the texts after theirs, in alphabetical order."""
        named = [*zip(self.fields, example.texts, strict=False)]
        named += [(f"choice{number}", choice) for number, choice in enumerate(example.choices, 1)]
        return " ".join([self.name, *(f"{name}: {text}" for name, text in sorted(named))])

    def answer_number(self, example: Example) -> int:
        """Returns which answer is right; NO_LABEL where it is not known."""
        return NO_LABEL if example.label is None else self.labels.index(example.label)

    # How good it is

    @property
    def judged(self) -> Task:
        """Returns what the examples of a split other than train are."""
        return self

    @abstractmethod
    def controls(self, splits: Splits) -> Iterator[ControlAnswers]:
        """Every control on every labelled split but train. Raises as controls.fitted_rules does."""

    # As plain values

    def values(self) -> dict[str, Any]:
        """Returns what kinds.from_values makes this of."""
        return {"name": self.name, "kind": self.kind, **asdict(self)}

    @property
    def is_sound(self) -> bool:
        """Whether this, which may have come from a file, is a task."""
        texts = (self.name, *self.labels, *self.metrics, *self.answers, *self.fields)
        choices = ((self.layout, Layout), (self.symbols, Symbols), (self.regression, Regression))
        low, high = map(float, self.score_range)
        return (
            all(isinstance(text, str) and text.isprintable() for text in texts)
            and all(value in get_args(known) for value, known in choices)
            and self.loss in self.losses
            and low < high
            and bool(self.metrics and (self.labels or self.has_scores or self.writes_text))
        )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The task of this kind with these `values`, lists in the place of tuples. Raises TypeError for others."""
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        task = cls(**plain)
        if not task.is_sound:
            raise TypeError("not a task")
        return task


def control_answers(
    task: Task, splits: Splits, control: str, answer: Callable[[Sequence[Example]], Numbers]
) -> Iterator[ControlAnswers]:
    """What a control answers to the labelled examples of each split but train."""
    for split, rows in splits.items():
        if split != "train" and (examples := [example for example in rows if example.is_labelled]):
            ids, groups = (tuple(getattr(one, key) for one in examples) for key in ("id", "group"))
            yield ControlAnswers(control, split, ids, task.gold(examples), answer(examples), groups)


def probabilities(scores_NK: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64 [N, K]: the softmax of scores [N, K]."""
    exponents = np.exp(scores_NK - scores_NK.max(axis=1, keepdims=True), dtype=np.float64)
    shares: NDArray[np.float64] = exponents / exponents.sum(axis=1, keepdims=True)
    return shares
