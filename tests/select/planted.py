"""Candidates whose results are planted, and an `evaluate` that reports them."""

from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from letheon.evaluation import ORDINARY, SAME, Evaluation
from letheon.guarantee import Guarantee, MethodFacts
from letheon.measures import Measure

FACTS: dict[str, Any] = {
    "method": "planted",
    "applicability": "made-up models",
    "exact": False,
    "strength": "strong",
    "efficiency_parameters": (),
    "certifiability_parameters": (),
    "requests": "adaptive",
    "releases": "every-version",
    "state_holds_rows": True,
    "definition_text": "**Claim.** None.",
    "families": ("any",),
    "tasks": ("classification", "regression"),
    "certificate": "certified",
    "batches": True,
}


class PlantedMethod(BaseEstimator):
    """Says what an evaluation of it will find."""

    facts: ClassVar[MethodFacts] = MethodFacts(**FACTS)

    def __init__(
        self,
        *,
        speed: float = 10.0,
        jitter: float = 0.1,
        lost: float = 0.0,
        margin: float | None = 0.001,
        sape: float = 0.0,
        agreement: float = 100.0,
        first_fit: float = 1.0,
        kind: str = "certified",
        epsilon: float = 1.0,
        refuses: bool = False,
    ) -> None:
        self.speed = speed
        self.jitter = jitter
        self.lost = lost
        self.margin = margin
        self.sape = sape
        self.agreement = agreement
        self.first_fit = first_fit
        self.kind = kind
        self.epsilon = epsilon
        self.refuses = refuses

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> "PlantedMethod":
        return self

    def predict(self, X: Any) -> Any:
        return (X[:, 0] > 0).astype(int)


class PlantedExact(PlantedMethod):
    """Exact, with an efficiency parameter whose price cross-validation does not see."""

    facts: ClassVar[MethodFacts] = MethodFacts(**{**FACTS, "exact": True, "certificate": "exact"})

    def __init__(self, *, pieces: int = 1, price: float = 0.01) -> None:
        super().__init__(speed=10.0 * pieces, lost=price * pieces, kind="exact")
        self.pieces = pieces
        self.price = price

    def set_params(self, **params: Any) -> "PlantedExact":
        PlantedExact.__init__(self, **{**self.get_params(), **params})
        return self


class ThresholdRule(ClassifierMixin, BaseEstimator):
    """Says whether the first column is positive; wrong where the second is below a number."""

    def __init__(self, wrong_below: float = 0.0) -> None:
        self.wrong_below = wrong_below

    def fit(self, X: Any, y: Any) -> "ThresholdRule":
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> Any:
        return ((X[:, 0] > 0) ^ (X[:, 1] < self.wrong_below)).astype(int)


def measure(
    name: str, value: float, margin: float | None, better: Any = "lower", unit: str = ""
) -> Measure:
    """Return a measure; without a margin because its error is unknown."""
    return Measure(
        name=name,
        value=value,
        low=None if margin is None else value - margin,
        high=None if margin is None else value + margin,
        n=3,
        better=better,
        basis="measured",
        unit=unit,
    )


def seconds(value: float) -> Measure:
    return measure("seconds", value, 0.0, unit="s")


def evaluation(model: Any, title: str = "planted") -> Evaluation:
    """Return the evaluation that the model plants; a retrain of the ordinary model takes 1 s."""
    speed = measure("efficiency", model.speed, model.speed * model.jitter, "higher", "x")
    against = {
        "efficiency": speed,
        "score lost": measure("score lost", model.lost, model.margin),
        "certifiability": measure("certifiability", model.sape, 0.0, unit="%"),
        "output consistency": measure("output consistency", model.agreement, 0.0, "higher", "%"),
    }
    certified: dict[str, Any] = {}
    if model.kind == "certified":
        certified = {"epsilon": model.epsilon, "delta": 1e-5}
    return Evaluation(
        title=title,
        method="planted",
        dataset="made up",
        settings={},
        requests="none",
        n_requests=1,
        n_people=1,
        n_rows=40,
        measures={SAME: against, ORDINARY: dict(against)},
        floor={"certifiability": measure("certifiability", 0.5, 0.0, unit="%")},
        baselines={SAME: "itself", ORDINARY: "a dummy"},
        seconds={
            "fit": seconds(model.first_fit),
            "forget": seconds(1 / model.speed),
            SAME: seconds(1.0),
            ORDINARY: seconds(1.0),
        },
        scores={},
        metric="accuracy",
        storage={},
        work=measure("work", 0.1, 0.0),
        strength=None,
        guarantee=Guarantee(kind=model.kind, reference="none", **certified),
        equal_digests=None,
        attacks=(),
        fairness=(),
        trials=(),
    )


def evaluate_planted(model: Any, *_: Any, title: str = "", **__: Any) -> Evaluation:
    if model.refuses:
        raise ValueError("these rows do not suit me")
    return evaluation(model, title)


def people(n: int = 40) -> tuple[Any, Any]:
    """Return rows whose class is the sign of their first column."""
    X, y = np.random.default_rng(0).normal(size=(n, 2)), np.arange(n) % 2
    X[:, 0] = np.where(y == 1, 1.0, -1.0) * abs(X[:, 0])
    return X, y
