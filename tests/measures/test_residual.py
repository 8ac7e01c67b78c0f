"""The gradient residual after unlearning."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from letheon.linear import InfluenceRegressor
from letheon.measures import gradient_residual, gradient_residual_of


@given(
    gradient=hnp.arrays(np.float64, (3, 2), elements=st.floats(-1e6, 1e6)), n=st.integers(1, 1000)
)
def test_it_is_the_length_over_the_rows(gradient: NDArray[np.float64], n: int) -> None:
    measure = gradient_residual(gradient, n)
    assert measure.value == pytest.approx(math.sqrt(sum(g * g for g in gradient.ravel())) / n)
    assert measure.low == measure.value == measure.high
    assert measure.n == n


def test_extreme_gradients_neither_overflow_nor_vanish() -> None:
    assert gradient_residual([3e200, 4e200], 5).value == pytest.approx(1e200)
    assert gradient_residual([3e-200, 4e-200], 5).value == pytest.approx(1e-200)


def test_model_is_asked_and_agrees_with_its_objective() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = X @ [1.0, 2.0, 3.0] + rng.normal(size=60)
    model = InfluenceRegressor(l2=0.1, sigma=0.0, fit_intercept=False).fit(X, y)
    model.forget([0, 1])
    X, y, w = X[2:], y[2:], model.coef_.ravel()
    gradient = X.T @ (X @ w - y) + 0.1 * len(X) * w
    measure = gradient_residual_of(model)
    assert measure is not None
    assert measure.value == pytest.approx(np.linalg.norm(gradient) / 58, abs=1e-10)
    assert measure.n == 58


def test_models_that_cannot_tell_give_none() -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    without_rows = InfluenceRegressor(
        l2=0.1, sigma=1.0, rows="clip", row_norm=1.5, data_free=True, if_unproved="downgrade"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        without_rows.fit(X, X[:, 0])
    assert gradient_residual_of(without_rows) is None
    assert gradient_residual_of(object()) is None


@pytest.mark.parametrize(
    ("gradient", "n", "text"),
    [([1.0], 0, "n_rows must be"), ([math.nan], 1, "finite"), ([], 1, "non-empty")],
)
def test_bad_gradients_are_refused(gradient: Any, n: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        gradient_residual(gradient, n)
