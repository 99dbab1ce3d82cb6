"""Linear models of a task: logistic regression, or ridge regression of scores, on features of its texts. The penalty is
chosen by cross-validation on train.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.base import Example, Numbers, Task

Texts = list[tuple[str, str]]  # (first text or nothing, second)
Predict = Callable[[Sequence[Example]], Numbers]
PENALTIES = np.logspace(-2, 2, 5)  # inverse strengths that cross-validation chooses from
FOLDS = 5
SEED = 0  # of the folds


def linear(task: Task, train: Sequence[Example], features: Callable[[Texts], Any], alone: bool = False) -> Predict:
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
    """A scikit-learn estimator."""
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
    """The texts of each example; of a choice those of each answer, with the document and the question before it."""
    rows = []
    for example in examples:
        *before, last = example.texts
        told = [(" ".join(example.texts), choice) for choice in example.choices] or [(" ".join(before), last)]
        rows += [("" if alone else first, second) for first, second in told]
    return rows
