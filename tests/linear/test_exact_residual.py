"""`exact_residual`: the gradient at the published parameters, on the rows that are held."""

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from letheon.linear import (
    DeltaGradClassifier,
    DescentToDeleteClassifier,
    FisherClassifier,
    InfluenceClassifier,
)
from letheon.measures import gradient_residual_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 4))
X /= np.linalg.norm(X, axis=1, keepdims=True)
Y = (X[:, 0] + 0.3 * RNG.normal(size=80) > 0).astype(int)
SHARED: dict[str, Any] = {"l2": 0.05, "fit_intercept": False}
CERTIFIED: dict[str, Any] = {**SHARED, "row_norm": 1.0, "rows": "refuse", "sigma": 0.1}
MODELS = [
    FisherClassifier(**CERTIFIED),
    DescentToDeleteClassifier(**CERTIFIED),
    DeltaGradClassifier(**SHARED, n_steps=200),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_it_is_the_gradient_of_the_rows_that_are_left(model: Any) -> None:
    """By hand: sum_i (sigmoid(x w) - y) x + l2 n w, with the published coefficients."""
    model.fit(X, Y)
    for gone in ([], [3, 4, 5]):
        model.forget(gone)
        left = np.setdiff1d(np.arange(80), gone)
        w = model.coef_[0]
        gradient = X[left].T @ (expit(X[left] @ w) - Y[left]) + 0.05 * len(left) * w
        assert model.exact_residual() == pytest.approx(np.linalg.norm(gradient), rel=1e-9)
        measure = gradient_residual_of(model)
        assert measure is not None
        assert measure.value == pytest.approx(np.linalg.norm(gradient) / len(left), rel=1e-9)


def test_influence_counts_its_noise() -> None:
    """Its noise is a term of the objective, so at the optimum nothing is left."""
    model = InfluenceClassifier(**{**CERTIFIED, "sigma": 1.0}).fit(X, Y)
    assert model.exact_residual() < 1e-5
