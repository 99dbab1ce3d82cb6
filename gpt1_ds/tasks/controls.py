"""Scores that a trained model has to be compared with: rules that were never pre-trained, fitted on the same examples.

    majority           the most frequent label of train; of a regression its mean score
    bag of words       a linear model of the TF-IDF weights of words and pairs of words, of each text its own
    second text alone  the same without the first text: what the way a task was written betrays (Gururangan et al. 2018)
    word overlap       a linear model of four numbers that compare two texts: the cosine of their TF-IDF weights, the
                       fraction of the words of either that the other has, and how many of all are in the second
    words and overlap  a linear model of all of these, the strongest of the rules for two texts
    TF-IDF cosine      of sentence vectors, in the place of all others

At most 20,000 examples of train are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.base import ControlAnswers, Numbers, Task, control_answers
from gpt1_ds.tasks.dev import capped
from gpt1_ds.tasks.example import Example, Splits

Texts = list[tuple[str, str]]  # (first text or nothing, second)
Predict = Callable[[Sequence[Example]], Numbers]
PENALTIES = np.logspace(-2, 2, 5)  # inverse strengths that cross-validation chooses from
FOLDS = 5
SEED = 0  # of the folds


def fit_linear(task: Task, train: Sequence[Example], features: Callable[[Texts], Any], alone: bool = False) -> Predict:
    """Returns the predictions, for other examples, of a model that is fitted on `train`. `features` makes a table of
    pairs of texts, a row each; `alone` hides the first texts from it. A choice is a row for each answer, whose label is
    whether it is right; the most probable one is chosen. Raises DataError when scikit-learn is not installed,
    ValueError for labels of one class.
    """
    gold, choices = task.gold(train), len(train[0].choices)
    if choices:
        gold = np.array([choice == right for right in gold for choice in range(choices)], dtype=np.int64)
    model = _fitted(task, features(text_rows(train, alone)), gold)

    def predict(examples: Sequence[Example]) -> Numbers:
        table = features(text_rows(examples, alone))
        if choices:
            right_NC = model.predict_proba(table)[:, 1].reshape(len(examples), choices)
            chosen: Numbers = np.argmax(right_NC, axis=1)
            return chosen
        found: Numbers = model.predict(table)
        return found

    return predict


def _fitted(task: Task, table: Any, gold: Numbers) -> Any:
    """Returns a scikit-learn estimator."""
    try:
        from sklearn.linear_model import LogisticRegression, RidgeCV
        from sklearn.model_selection import GridSearchCV, StratifiedKFold
    except ImportError:
        raise DataError("linear models need scikit-learn; pip install 'gpt1-ds[finetune]'") from None

    if task.has_scores:
        return RidgeCV(1 / PENALTIES).fit(table, gold)
    model = LogisticRegression(max_iter=1000)
    smallest = int(np.unique(gold, return_counts=True)[1].min())
    if smallest < 2:
        return model.fit(table, gold)
    folds = StratifiedKFold(min(FOLDS, smallest), shuffle=True, random_state=SEED)
    return GridSearchCV(model, {"C": PENALTIES}, cv=folds).fit(table, gold)


def text_rows(examples: Sequence[Example], alone: bool = False) -> Texts:
    """Returns the texts of each example; of a choice those of each answer, with the document and the question before
    it.
    """
    rows = []
    for example in examples:
        *before, last = example.texts
        pairs = [(" ".join(example.texts), choice) for choice in example.choices] or [(" ".join(before), last)]
        rows += [("" if alone else first, second) for first, second in pairs]
    return rows


MAJORITY, WORDS, COSINE = "majority", "bag of words", "TF-IDF cosine"
SECOND, OVERLAP, STRONGEST = "second text alone", "word overlap", "words and overlap"  # where there are two texts
CONTROLS = (MAJORITY, WORDS, SECOND, OVERLAP, STRONGEST)
ALL_CONTROLS = (*CONTROLS, COSINE)
MOST = 20_000  # training examples that are fitted: a few minutes on one core


def fitted_rules(task: Task, splits: Splits) -> Iterator[ControlAnswers]:
    """Yields the majority and the linear models on every labelled split but train.

    Raises DataError when scikit-learn is not installed, ValueError for examples of which it makes no model: texts
    without a word, or of one class.
    """
    train = [example for example in capped(tuple(splits["train"]), MOST) if example.is_labelled]
    pairs = len(train[0].texts) > 1 or bool(train[0].choices)
    features = Features(text_rows(train))
    for control in CONTROLS if pairs else CONTROLS[:2]:
        predict = _majority(task, train) if control == MAJORITY else _linear(task, train, control, features)
        yield from control_answers(task, splits, control, predict)


def cosines(splits: Splits) -> Iterator[ControlAnswers]:
    """Yields the TF-IDF cosine of scored pairs. Words are weighted by how rare they are in train; no label is read."""
    features = Features([(example.texts[0], example.texts[1]) for example in splits["train"]])
    for split, examples in splits.items():
        scored = [example for example in examples if example.score is not None]
        if split != "train" and scored:
            gold = np.array([example.score for example in scored], dtype=np.float64)
            found = features.cosines([(example.texts[0], example.texts[1]) for example in scored])
            yield ControlAnswers(COSINE, split, tuple(example.id for example in scored), gold, found)


def _majority(task: Task, train: Sequence[Example]) -> Predict:
    gold = task.gold(train)
    if task.has_scores:
        return lambda examples: np.full(len(examples), gold.mean())
    labels, counts = np.unique(gold, return_counts=True)
    return lambda examples: np.full(len(examples), labels[counts.argmax()])


def _linear(task: Task, train: Sequence[Example], control: str, features: Features) -> Predict:
    """Returns the control of this name, other than the majority. The words of the second text alone are those of no
    other.
    """
    if control == SECOND:
        return fit_linear(task, train, Features(text_rows(train, alone=True)).words, alone=True)
    tables = {WORDS: features.words, OVERLAP: features.overlap, STRONGEST: features.words_and_overlap}
    return fit_linear(task, train, tables[control])


class Features:
    """Makes of texts [N] sparse matrices: the words of both texts apart, and what they have in common."""

    def __init__(self, rows: Texts) -> None:
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
        except ImportError:
            raise DataError("controls need scikit-learn; pip install 'gpt1-ds[finetune]'") from None
        self.two = any(first for first, _ in rows)
        self.weights = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
        self.weights.fit(text for row in rows for text in row)

    def cosines(self, rows: Texts) -> NDArray[np.float64]:
        """Returns [N], of the two texts of each row; 0 where one has no word that is known."""
        first, second = self._texts(rows)  # sparse rows of length 1, or of zeros
        return np.asarray(first.multiply(second).sum(1)).ravel()

    def words(self, rows: Texts) -> Any:
        """Returns [N, words], or [N, 2 x words] of two texts."""
        from scipy.sparse import hstack

        first, second = self._texts(rows)
        return hstack([first, second]).tocsr() if self.two else second

    def overlap(self, rows: Texts) -> Any:
        """Returns [N, 4]."""
        from scipy.sparse import csr_matrix

        return csr_matrix(np.column_stack([self.cosines(rows), np.array([_overlap(*row) for row in rows])]))

    def words_and_overlap(self, rows: Texts) -> Any:
        """Returns [N, 2 x words + 4]."""
        from scipy.sparse import hstack

        return hstack([self.words(rows), self.overlap(rows)]).tocsr()

    def _texts(self, rows: Texts) -> tuple[Any, Any]:
        """Returns the weights of the first and of the second texts, [N, words] each."""
        first, second = (self.weights.transform([row[side] for row in rows]) for side in (0, 1))
        return first, second


def _overlap(first: str, second: str) -> tuple[float, float, float]:
    """Returns for the words of either text the fraction that is in the other one; and whether both are as long."""
    words, others = (set(re.findall(r"\w+", text.lower())) for text in (first, second))
    common = len(words & others)
    return common / max(1, len(words)), common / max(1, len(others)), len(others) / max(1, len(words | others))
