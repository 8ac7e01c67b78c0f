"""Models made of sums: any sequence of requests equals a fresh fit; results are scikit-learn's."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn import linear_model
from sklearn.datasets import make_classification, make_regression

from letheon.exceptions import EmptyModelError
from letheon.state import decode, encode
from letheon.sums import (
    PCA,
    GaussianNB,
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
    Ridge,
    RidgeClassifier,
)
from tests.sums.models import Held, draw_labels, draw_rows

REGRESSORS = [Ridge(), Ridge(fit_intercept=False)]
CLASSIFIERS = [
    RidgeClassifier(),
    LinearDiscriminantAnalysis(),
    QuadraticDiscriminantAnalysis(),
    GaussianNB(),
]
WEIGHTED = (Ridge, RidgeClassifier, GaussianNB)


def clone_with_seed(model: Any, seed: int) -> Any:
    return type(model)(**{**model.get_params(), "random_state": seed})


def fit_rows(model: Any, rows: Held) -> Any:
    y = () if model._role == "none" else (rows.y,)
    return clone_with_seed(model, 3).fit(rows.X, *y, **rows.keywords())


def run_requests(model: Any, rng: Any, *, is_weighted: bool) -> None:
    """Forget and learn at random; compare digests with fresh fits."""
    is_classifier = model in CLASSIFIERS
    n = int(rng.integers(12, 40))
    X = draw_rows(rng, n)
    y = draw_labels(rng, n) if is_classifier else X[:, 3] + rng.normal(size=n)
    rows = Held(X, y, rng.integers(0, 3, n) * 0.7 + 0.1 if is_weighted else None)
    fitted = fit_rows(model, rows)
    for _ in range(int(rng.integers(1, 5))):
        if rng.random() < 0.6:
            size = min(int(rng.integers(1, 6)), len(rows.ids))
            ids = rng.choice(rows.ids, size=size, replace=False).tolist()
            try:
                fitted.forget(ids)
            except EmptyModelError:
                continue
            rows.drop(ids)
        else:
            m = int(rng.integers(1, 8))
            X, weights = draw_rows(rng, m), None if rows.weights is None else np.full(m, 0.3)
            y = np.array(list("abd"))[rng.integers(0, 3, m)] if is_classifier else X[:, 0] - 1.7e9
            ids = rows.append(X, y, weights)
            target = () if model._role == "none" else (y,)
            more = {} if weights is None else {"sample_weight": weights}
            try:
                fitted.learn(X, *target, ids=ids, **more)
            except ValueError:  # one row of a class
                rows.drop(ids)
        fitted._finish_pending()
        fresh = fit_rows(model, rows)
        assert fresh.digest() == fitted.digest()
        again = decode(encode(fitted))
        assert again.digest() == fitted.digest()
        shuffled = rng.permutation(len(rows.ids))
        other = permute(model, rows, shuffled)
        for mine, theirs in zip(fresh.sums_.grams, other.grams, strict=True):
            assert np.array_equal(mine.products, theirs.products)


def permute(model: Any, rows: Held, order: Any) -> Any:
    """Return the sums of the rows in another order."""
    other = Held(rows.X[order], rows.y[order], None)
    other.ids = [rows.ids[k] for k in order]
    other.weights = None if rows.weights is None else rows.weights[order]
    return fit_rows(model, other).sums_


@pytest.mark.parametrize(
    "model", [*REGRESSORS, *CLASSIFIERS, PCA(), PCA(n_components=0.9)], ids=repr
)
@given(st.integers(0, 2**32), st.booleans())
def test_any_requests_equal_a_fresh_fit(model: Any, number: int, is_weighted: bool) -> None:
    takes_weights = isinstance(model, WEIGHTED)
    run_requests(model, np.random.default_rng(number), is_weighted=is_weighted and takes_weights)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("alpha", [0.1, 10.0])
@pytest.mark.parametrize("is_weighted", [True, False])
@pytest.mark.parametrize("is_sparse", [True, False])
def test_ridge_has_the_coefficients_of_sklearn(
    fit_intercept: bool, alpha: float, is_weighted: bool, is_sparse: bool
) -> None:
    X, Y = make_regression(300, 6, n_targets=2, noise=3.0, random_state=0)
    X = X * np.array([1e-3, 1.0, 1e4, 1.0, 1.0, 5.0]) + (0.0 if is_sparse else 3.0)
    weights = np.random.default_rng(1).uniform(0.0, 900.0, 300) if is_weighted else None
    settings: dict[str, Any] = {"alpha": alpha, "fit_intercept": fit_intercept}
    table = sp.csr_array(X) if is_sparse else X
    for target in (Y, Y[:, 0], Y[:, :1]):
        ours = Ridge(**settings, random_state=0).fit(table, target, sample_weight=weights)
        theirs = linear_model.Ridge(**settings).fit(X, target, sample_weight=weights)
        scale = X.std(axis=0)
        assert np.allclose(ours.coef_ * scale, theirs.coef_ * scale, atol=2e-5)
        assert np.allclose(ours.intercept_, theirs.intercept_, atol=1e-3)
        assert np.shape(ours.coef_) == np.shape(theirs.coef_)
        assert np.allclose(ours.predict(table), theirs.predict(X), atol=1e-3)
        assert ours.n_clipped_.sum() == 0


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_ridge_classifier_has_the_coefficients_of_sklearn(
    n_classes: int, fit_intercept: bool
) -> None:
    X, y = make_classification(
        400, 8, n_informative=6, n_redundant=0, n_classes=n_classes, random_state=2
    )
    settings: dict[str, Any] = {"alpha": 2.0, "fit_intercept": fit_intercept}
    ours = RidgeClassifier(**settings, random_state=0).fit(X, y)
    theirs = linear_model.RidgeClassifier(**settings).fit(X, y)
    assert np.allclose(ours.coef_, theirs.coef_, atol=1e-6)
    assert np.allclose(ours.intercept_, theirs.intercept_, atol=1e-6)
    assert (ours.predict(X) == theirs.predict(X)).all()
    assert np.allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-5)


def test_alpha_path_has_the_coefficients_of_single_fits() -> None:
    X, y = make_regression(100, 5, noise=2.0, random_state=3)
    X[:, 2] = 7.0
    alphas = [0.01, 1.0, 100.0]
    coefs, intercepts = Ridge(random_state=0).fit(X, y).alpha_path(alphas)
    for alpha, coef, intercept in zip(alphas, coefs, intercepts, strict=True):
        single = Ridge(alpha=alpha, random_state=0).fit(X, y)
        assert np.allclose(coef[0], single.coef_)
        assert np.allclose(intercept[0], single.intercept_)
    with pytest.raises(ValueError, match="expected positive finite"):
        Ridge(random_state=0).fit(X, y).alpha_path([0.0])


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_rows", [4, 200])
@pytest.mark.parametrize("kind", ["numbers", "two classes", "three classes"])
def test_alpha_path_has_the_coefficients_of_sklearn(
    fit_intercept: bool, n_rows: int, kind: str
) -> None:
    """Columns of very different scales: the penalty is on the coefficients in their units."""
    rng = np.random.default_rng(4)
    units = np.array([0.01, 1.0, 900.0, 0.2, 5.0, 60.0])
    X = (rng.normal(size=(n_rows, 6)) + 2) * units
    Y = rng.normal(size=(n_rows, 2)) if kind == "numbers" else np.arange(n_rows) % 3
    ours: Any = Ridge
    theirs: Any = linear_model.Ridge
    if kind != "numbers":
        ours, theirs = RidgeClassifier, linear_model.RidgeClassifier
        Y = Y if kind == "three classes" else Y // 2
    alphas = np.array([1e-5, 0.1, 30.0, 1e7])
    fitted = ours(fit_intercept=fit_intercept, random_state=0).fit(X, Y)
    coefs, intercepts = fitted.alpha_path(alphas)
    for alpha, coef, intercept in zip(alphas, coefs, intercepts, strict=True):
        single = theirs(alpha=alpha, fit_intercept=fit_intercept, solver="svd").fit(X, Y)
        expected = single.coef_ * units
        limit = 1e-6 if n_rows == 200 else 5e-4  # four rows do not determine six coefficients
        assert np.abs(coef * units - expected).max() < limit
        assert np.abs(intercept - single.intercept_).max() < limit


def test_the_last_row_of_a_class() -> None:
    X, y = np.arange(8.0)[:, None], np.array(list("aaabbbbc"))
    model = RidgeClassifier(random_state=0).fit(X, y)
    model.forget([7])
    assert model.classes_.tolist() == ["a", "b"]
    assert model.coef_.shape == (1, 1)
    with pytest.raises(EmptyModelError, match="number of classes has to be greater than one"):
        model.forget([0, 1, 2])
    assert model.n_rows_ == 7


def test_a_row_has_the_same_components_alone_and_in_a_table() -> None:
    """BLAS gives other last bits; a model behind a PCA then subtracted what was never added."""
    rng = np.random.default_rng(0)
    for n_features, n_rows in ((45, 30), (131, 700), (300, 337)):
        X = rng.normal(size=(n_rows, n_features))
        model = PCA(n_components=7, random_state=0).fit(X)
        together = model.transform(X)
        parts = [model.transform(X[k : k + 1]) for k in range(20)] + [model.transform(X[20:])]
        assert np.array_equal(np.vstack(parts), together)
        assert np.allclose(together, (X - model.mean_) @ model.components_.T)


def test_an_outlier_is_clipped_and_counted() -> None:
    X = np.random.default_rng(0).normal(size=(400_000, 1))
    X[17] = 1e9
    y = np.random.default_rng(1).normal(size=400_000)
    model = Ridge(random_state=1).fit(X, y)
    before = model.n_clipped_.tolist()
    model.forget([17])
    assert before in ([0], [1])
    assert model.n_clipped_.tolist() == [0]


def test_clipped_values_are_counted_by_the_definition() -> None:
    """Each outlier is beyond the grid as soon as the larger ones have left."""
    n = 2**21  # a single value is at most n**(1/2) deviations from the mean
    largest, large, small, smallest = 0.97 * np.sqrt(n) * 2.0 ** np.array([30, 20, 10, 0])
    X = np.zeros((n, 3))
    X[:, 2] = np.where(np.arange(n) % 4 < 2, 1.0, -1.0)
    X[7, 2] = 1100.0  # it leaves, and the scale stays
    X[:4, 0] = largest, -large, small, -smallest
    X[4:7, 1] = small, large, -largest
    y = np.arange(n) % 2
    model = GaussianNB(random_state=2).fit(X, y, ids=range(n))
    for removed in ([0], [7, 8], [5, 6], [1, 2]):
        model.forget(removed)
        X[removed] = np.nan
        grid = model.published_
        far = np.abs((X - grid.centres) / grid.scales) > (2**30 - 1) / 2**20
        assert model.n_clipped_.tolist() == far.sum(axis=0).tolist()
        assert far[:, :2].any(axis=0).all()
        assert far[7, 2] == (removed == [0])
    model.learn([[-largest, 0.0, 0.0]], [1], ids=[n])
    assert model.n_clipped_.tolist() == [1, 1, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_missing_and_infinite_values_are_refused(value: float) -> None:
    X, y = np.ones((5, 2)), np.arange(5.0)
    X[3, 1] = value
    with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
        Ridge().fit(X, y)
    with pytest.raises(ValueError, match=r"Input y contains (NaN|infinity)"):
        Ridge().fit(np.ones((5, 2)), np.where(y == 2, value, y))


def test_a_removal_changes_one_column_of_products() -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(300, 12))
    X[0, 3] = 1e3
    y = rng.normal(size=300)
    model = Ridge(random_state=0).fit(X, y)
    receipt = model.forget([0])
    assert receipt.rebuilt["columns"] == 1
    assert receipt.work < 0.1
    assert model.digest() == Ridge(random_state=0).fit(X[1:], y[1:], ids=range(1, 300)).digest()


SCRIPT = """
import numpy as np
from letheon.sums import Ridge
rng = np.random.default_rng(0)
X = rng.normal(size=(20_000, 30)) * np.logspace(-3, 3, 30)
model = Ridge(random_state=5).fit(X, X[:, 0] + rng.normal(size=20_000))
model.forget([3, 4])
print(model.digest())
"""


def test_digests_are_the_same_with_all_kernels_and_threads() -> None:
    digests = set()
    for kernel, threads in (("Haswell", 1), ("Prescott", 2), ("SkylakeX", 4), ("", 1)):
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
        if kernel:
            environment["OPENBLAS_CORETYPE"] = kernel
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, check=True
        )
        digests.add(done.stdout)
    assert len(digests) == 1
