"""What a model keeps beside its parameters follows them, and rounding is counted."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_iris

from letheon.exceptions import AssumptionError, ChangedParametersError
from letheon.linear import InfluenceClassifier, InfluenceRegressor
from letheon.linear._curvature import Curvature, HessianProducts
from letheon.linear._problem import FitProblem, Squared
from tests.linear.people import form_no_matrix

Floats = NDArray[np.float64]
IRIS, SPECIES = load_iris(return_X_y=True)


def houses(seed: int, n_rows: int = 400) -> tuple[Floats, Floats]:
    """Areas, incomes and years as people have them: columns of very different sizes."""
    rng = np.random.default_rng(seed)
    X = np.column_stack(
        [
            rng.normal(2e3, 5e2, n_rows),
            rng.normal(3e4, 1e4, n_rows),
            rng.integers(1950, 2020, n_rows),
            rng.normal(size=n_rows),
        ]
    )
    return X, X @ [100.0, 2.0, 50.0, 1e3] + rng.normal(0, 1e4, n_rows)


def long_residual(model: Any) -> float:
    """Norm of the gradient on the rows held, in extended precision."""
    problem = model._current_problem()
    X, y, W = (
        np.asarray(part, np.longdouble) for part in (problem.X, problem.y, model.weights_.open())
    )
    gradient = X.T @ (X @ W - y[:, None]) + problem.ridge * W
    return float(np.sqrt((gradient**2).sum()))


def test_the_account_covers_what_rounding_leaves() -> None:
    for seed in range(2):
        model = InfluenceRegressor(sigma=1.0, noise_seed=seed).fit(*houses(seed))
        for person in range(25):
            model.forget([person])
            assert long_residual(model) <= model.account_.spent


def test_training_on_unscaled_columns_does_not_depend_on_luck() -> None:
    """Rounding of large numbers needs noise that hides it, whatever noise is drawn."""
    for seed in range(3):
        rows = houses(seed, 2000)
        for _ in range(4):
            assert InfluenceRegressor(sigma=200.0).fit(*rows).guarantee_.kind == "certified"
            with pytest.raises(AssumptionError, match="scale large columns"):
                InfluenceRegressor().fit(*rows)


@given(st.integers(0, 2**32 - 1), st.integers(-3, 5))
def test_the_last_bits_of_parameters_make_no_more_than_is_said(seed: int, power: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(30, 4)) * 10.0 ** rng.integers(0, power + 4, 4)
    problem = FitProblem(X, rng.normal(size=30), Squared(), 30, 1e-3)
    W = rng.normal(size=(4, 1)) * 10.0**power
    bits = np.finfo(np.float64).eps * np.abs(W) * rng.choice([-1.0, 1.0], (4, 1))
    moved = np.linalg.norm(X.T @ (X @ bits))
    assert moved <= problem.rounding_at(W) * (1 + 1e-9)
    assert moved <= Curvature.from_problem(problem, W).rounding_at(W) * (1 + 1e-9)


def test_scores_that_are_kept_follow_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    form_no_matrix(monkeypatch, above=2)
    model = InfluenceClassifier(l2=0.1, sigma=50.0, noise_seed=0).fit(IRIS, SPECIES)
    for person in (3, 60, 110, 7):
        model.forget([person])
        products = model.cache_.content
        assert isinstance(products, HessianProducts)
        expected = model.rows_.X @ model.weights_.open()
        assert np.allclose(products.scores, expected, atol=1e-12)
        assert not products.weights[~model.rows_.alive].any()


def test_no_matrix_is_formed_where_rows_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a matrix of 601 columns for 40 rows")

    monkeypatch.setattr(FitProblem, "hessian_at", refuse)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 600)), np.arange(40) % 2
    model = InfluenceClassifier(sigma=0.1, noise_seed=0).fit(X, y)
    assert model.forget([1]).n_rows == 1


def test_settling_with_other_settings_is_refused() -> None:
    model = InfluenceClassifier(sigma=0.1, noise_seed=0).fit(IRIS, SPECIES)
    before = model.digest()
    model.set_params(l2=0.5)
    with pytest.raises(ChangedParametersError, match="changed after fit"):
        model.settle()
    assert model.set_params(l2=1e-3).digest() == before


@pytest.mark.parametrize("name", ["weights_", "noise_"])
def test_a_retrain_destroys_old_secrets(name: str) -> None:
    model = InfluenceClassifier(sigma=0.1, mechanism="objective").fit(IRIS, SPECIES)
    old = getattr(model, name)
    assert model.forget(np.flatnonzero(SPECIES == 2)).rebuilt == {"retrains": 1}
    with pytest.raises(ValueError, match="wiped"):
        old.open()


def test_the_norm_of_rows_is_recorded() -> None:
    longest = float(np.sqrt((IRIS**2).sum(axis=1) + 1.0).max())
    assert InfluenceClassifier().fit(IRIS, SPECIES).row_norm_ == pytest.approx(longest)
    clipped = InfluenceClassifier(rows="clip", row_norm=3.0).fit(IRIS, SPECIES)
    assert clipped.row_norm_ == 3.0
