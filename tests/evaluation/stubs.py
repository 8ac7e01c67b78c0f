"""Unlearners with known properties."""

from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

import letheon
from letheon.guarantee import Guarantee, MethodFacts
from letheon.receipt import Receipt

RNG = np.random.default_rng(0)
X = RNG.normal(size=(440, 3))
Y = (X[:, 0] > 0).astype(int)
_ROWS = RNG.normal(size=(200, 3))
TEST = (_ROWS, (_ROWS[:, 0] > 0).astype(int))
# Without the canary test, where that is not the subject.
evaluate = partial(letheon.evaluate, canaries=False)
SIMPLE: dict[str, Any] = {"ordinary": LogisticRegression(), "test": TEST}


def cancer() -> tuple[Any, Any]:
    """Return rows of two classes, scaled."""
    rows, labels = load_breast_cancer(return_X_y=True)
    return (rows - rows.mean(axis=0)) / rows.std(axis=0), labels


FACTS = MethodFacts(
    method="stub",
    applicability="nothing",
    exact=False,
    strength="not stated",
    efficiency_parameters=(),
    certifiability_parameters=(),
    requests="oblivious",
    releases="latest-only",
    state_holds_rows=False,
    definition_text="A stub.",
)


class StubModel(ClassifierMixin, BaseEstimator):
    """Predicts the first column's sign, but for planted errors after a removal.

    `errors`: share of rows, those with the largest second column, that are mislabelled after
    the first removal. `diary` records every call.
    """

    facts: ClassVar[MethodFacts] = FACTS
    diary: ClassVar[list[tuple[str, Any]]] = []

    def __init__(
        self, *, errors: float = 0.0, kind: str = "empirical", random_state: Any = None
    ) -> None:
        self.errors = errors
        self.kind = kind
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> "StubModel":
        self.diary.append(("fit", len(y)))
        self.classes_ = np.unique(y)
        self.seed_ = 0 if self.random_state is None else self.random_state
        self.n_left_ = len(y)
        self.errors_ = 0.0
        return self

    def work_of(self, n_left: int) -> float:
        return 0.5

    def forget(self, ids: Any) -> Receipt:
        self.diary.append(("forget", len(ids)))
        self.n_left_ -= len(ids)
        self.errors_ = self.errors
        return Receipt(
            method="stub",
            n_ids=len(ids),
            n_rows=len(ids),
            guarantee=self.guarantee_,
            seconds=0.0,
            work=self.work_of(self.n_left_),
        )

    @property
    def guarantee_(self) -> Guarantee:
        return Guarantee(kind=self.kind, reference="planted")  # type: ignore[arg-type]

    def digest(self) -> str:
        return f"{self.n_left_} {self.errors_}"

    def predict(self, X: Any) -> Any:
        labels = (X[:, 0] > 0).astype(int)
        wrong = X[:, 1] >= np.quantile(X[:, 1], 1 - self.errors_) if self.errors_ else []
        labels[wrong] = 1 - labels[wrong]
        return labels

    def predict_proba(self, X: Any) -> Any:
        p = 0.1 + 0.8 * self.predict(X)
        return np.column_stack([1 - p, p])


def trials_in(diary: list[tuple[str, Any]]) -> list[list[tuple[str, Any]]]:
    """Cut the diary at fits on all rows; what came before the trials is warm-up and race."""
    starts = [i for i, call in enumerate(diary) if call == ("fit", 440)]
    ends = [*starts[1:], len(diary)]
    cut = [diary[start + 1 : end] for start, end in zip(starts, ends, strict=True)]
    return [calls for calls in cut if calls]
