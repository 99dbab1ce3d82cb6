"""A task: all that head, loss, metrics and controls need to know of it. Each kind of task is a subclass (kinds/)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.architecture.head import HeadSpec, SentenceLoss, TokenKind, head_kind
from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.config.task import Kind
from gpt1_ds.tasks.example import Example, Examples, Splits

Layout = Literal["single", "pair", "both", "choice", "sentences"]
Symbols = Literal["extract", "separator", "two_separators"]  # the symbols around texts (encoding.py)
Regression = Literal["classes", "value"]
Numbers = NDArray[np.int64] | NDArray[np.float64] | NDArray[np.object_]  # objects: texts, or tuples of tags
SCORE_CLASSES = 6  # a score is a distribution over the whole numbers 0 to 5 (Tai et al. 2015)
NO_LABEL = -1


@dataclass(frozen=True)
class ControlAnswers:
    """The answers of one control (controls.py) to the N labelled examples of one split. Examples of an equal group
    belong together.
    """

    control: str
    split: str
    ids: tuple[str, ...]  # of the examples
    gold: Numbers  # [N], the right answers
    found: Numbers  # [N], the control's
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task(ABC):
    """Its fields are plain values, so that a checkpoint can keep them; its methods are all that depends on the kind.

    Shapes: N examples, C sequences of an example, K scores of an example (classes, choices, or the value itself).
    """

    name: str
    layout: Layout  # sequences: single a; pair a b; both a b and b a; choice one for each; sentences one for each text
    labels: tuple[str, ...]  # names of classes, by number, or of choices; none for a regression
    metrics: tuple[str, ...]  # the first one chooses the best epoch
    score_range: tuple[float, float] = (0.0, float(SCORE_CLASSES - 1))
    symbols: Symbols = "extract"
    regression: Regression = "classes"  # what the head predicts for a score: six classes, or the score itself
    loss: SentenceLoss | None = None  # of sentence vectors; cosine learns from scores of pairs, the others from labels
    answers: tuple[str, ...] = ()  # of a text-to-text task: the text to write for each class or score; else none
    fields: tuple[str, ...] = ()  # of a text-to-text task: names of an example's texts

    kind: ClassVar[Kind]
    fitting_metrics: ClassVar[tuple[str, ...]]  # those reported for the task `table`; the first chooses the best epoch
    losses: ClassVar[tuple[SentenceLoss | None, ...]] = (None,)
    reads_scores: ClassVar[bool] = False  # whether the label column holds a number
    reads_tokens: ClassVar[bool] = False  # whether the head scores every token (token_rows.py)
    token_head: ClassVar[TokenKind | None] = None  # the kind of a head that scores every token
    writes_text: ClassVar[bool] = False  # whether an answer is any text (target_rows.py)
    submission: ClassVar[Literal["tsv", "json"]] = "tsv"  # the format of a file of predictions

    # Reading examples

    def with_settings(self, settings: TaskConfig) -> Task:
        """Returns the task with the settings that its kind has (generation: a prefix)."""
        return self

    @classmethod
    def layout_of(cls, has_two_texts: bool) -> Layout:
        """Returns the layout of examples of one text or of two."""
        return "both" if has_two_texts else "single"

    @classmethod
    def find_labels(cls, known: tuple[str, ...], splits: Splits, path: str) -> tuple[str, ...]:
        """Returns the names of classes or choices: those that are `known`, else those of the examples. Raises DataError
        naming `path` for labels that cannot be classes.
        """
        return known

    @classmethod
    def fit_metrics(cls, metrics: tuple[str, ...], labels: tuple[str, ...], path: str) -> tuple[str, ...]:
        """Returns those of `metrics` that can be computed for these labels. Raises DataError naming `path` where the
        first one cannot.
        """
        return metrics

    def doubts_about_kind(self, examples: Examples) -> Iterator[str]:
        """Yields notes where training examples look like another kind of task than a person chose for them."""
        return iter(())

    @property
    def has_scores(self) -> bool:
        """Returns whether an example has a score in place of a label."""
        return self.reads_scores

    def gold(self, examples: Sequence[Example]) -> Numbers:
        """Returns [N]: the right answers of labelled examples, which are numbers of classes or choices, or scores."""
        number_of: dict[str | None, int] = {label: number for number, label in enumerate(self.labels)}
        return np.array([number_of[example.label] for example in examples], dtype=np.int64)

    def head_targets(self, scores_N: NDArray[np.float64]) -> NDArray[np.float32] | None:
        """Returns [N, outputs]: what the head learns to predict for scores; None where it learns labels."""
        return None

    @property
    def line_fields(self) -> tuple[str, str]:
        """Returns the keys of the two texts in a line of a file to predict (lines.py)."""
        return "text", "text2"

    @property
    def groups_are_questions(self) -> bool:
        """Returns whether a group holds the answer options of one question, which counts only if all of them are
        right.
        """
        return False

    @property
    def group_metrics(self) -> tuple[str, ...]:
        """Returns the metrics that are also reported for each group of examples."""
        return self.metrics[:1]

    # The head and its predictions

    @property
    def is_text_to_text(self) -> bool:
        """Returns whether a language model writes the answer, so that there is no head."""
        return self.writes_text or bool(self.answers)

    @property
    def has_unanswerable(self) -> bool:
        """Returns whether a question may have no answer, as in SQuAD 2.0."""
        return False

    @property
    def outputs(self) -> int:
        """Columns of the head: one for each class; of a regression 6, or 1 for its value; 1 for a choice, because its
        softmax is over sequences. Text-to-text: the number of answers.
        """
        return len(self.answers) or self._head_outputs

    @property
    def sequences(self) -> int:
        """Returns C: the sequences of one example. Text-to-text has one, the source."""
        return 1 if self.is_text_to_text else self._head_sequences

    @property
    def classes(self) -> int:
        """K: what the softmax of an example is over."""
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
        """Returns [N] from the scores [N, K] of the head or of text-to-text answers: classes, choices or scores."""
        numbers: NDArray[np.int64] = np.argmax(scores_NK, axis=1)
        return numbers

    def format_prediction(self, prediction: Any) -> str:
        """Returns a prediction as GLUE's server reads it."""
        return self.labels[int(prediction)]

    # Text-to-text

    def text_answers(self, class_names: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the texts that an answer may be."""
        return class_names

    def text_fields(self) -> tuple[str, ...]:
        """Returns the names of an example's texts, for a task whose authors gave none."""
        return ("sentence",) if self.layout == "single" else ("sentence1", "sentence2")

    def source(self, example: Example) -> str:
        """Returns what the model reads, like `mnli hypothesis: ... premise: ...`: the task's name, then each text after
        its own name, in alphabetical order.
        """
        named = [*zip(self.fields, example.texts, strict=False)]
        named += [(f"choice{number}", choice) for number, choice in enumerate(example.choices, 1)]
        return " ".join([self.name, *(f"{name}: {text}" for name, text in sorted(named))])

    def answer_number(self, example: Example) -> int:
        """Returns the number of the right answer; NO_LABEL where it is not known."""
        return NO_LABEL if example.label is None else self.labels.index(example.label)

    # Evaluation

    @property
    def evaluation_task(self) -> Task:
        """Returns the task of all splits but train (sentence vectors: scored pairs, whatever trains the vectors)."""
        return self

    @abstractmethod
    def controls(self, splits: Splits) -> Iterator[ControlAnswers]:
        """Returns every control on every labelled split but train. Raises as controls.fitted_rules does."""

    # Plain values

    def values(self) -> dict[str, Any]:
        """Returns the plain values from which kinds.from_values makes this task again."""
        return {"name": self.name, "kind": self.kind, **asdict(self)}

    @property
    def is_valid(self) -> bool:
        """Returns whether the fields, which may have come from a file, have values that a task can have."""
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
        """Returns the task of this kind with these `values`, in which JSON may have made lists of tuples. Raises
        TypeError for others.
        """
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        task = cls(**fields)
        if not task.is_valid:
            raise TypeError("not a task")
        return task


def control_answers(
    task: Task, splits: Splits, control: str, answer: Callable[[Sequence[Example]], Numbers]
) -> Iterator[ControlAnswers]:
    """Yields what a control, whose rule is `answer`, says of the labelled examples of each split but train."""
    for split, examples in splits.items():
        labelled = [example for example in examples if example.is_labelled and split != "train"]
        if labelled:
            ids, groups = tuple(example.id for example in labelled), tuple(example.group for example in labelled)
            yield ControlAnswers(control, split, ids, task.gold(labelled), answer(labelled), groups)


def probabilities(scores_NK: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns float64 [N, K]: the softmax of scores [N, K]."""
    exponents = np.exp(scores_NK - scores_NK.max(axis=1, keepdims=True), dtype=np.float64)
    softmax_NK: NDArray[np.float64] = exponents / exponents.sum(axis=1, keepdims=True)
    return softmax_NK
