"""Discriminants, naive Bayes and PCA give the results of scikit-learn."""

from typing import Any

import numpy as np
import pytest
from sklearn import decomposition, discriminant_analysis, naive_bayes
from sklearn.datasets import make_classification

from letheon.exceptions import EmptyModelError
from letheon.sums import (
    PCA,
    GaussianNB,
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)

X2, Y2 = make_classification(500, 6, n_informative=5, n_redundant=0, random_state=2)
X3, Y3 = make_classification(
    600, 6, n_informative=5, n_redundant=0, n_classes=4, n_clusters_per_class=1, random_state=2
)
UNITS = np.array([1.0, 100.0, 1e-3, 1.0, 7.0, 1.0])
DATA = [(X2 * UNITS + 3.0, Y2), (X3 * UNITS - 1.0, Y3)]


@pytest.mark.parametrize(("X", "y"), DATA, ids=["binary", "several"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"solver": "lsqr"}, {"solver": "lsqr", "shrinkage": 0.3}, {"solver": "eigen"}],
    ids=str,
)
def test_linear_discriminants(X: Any, y: Any, settings: dict[str, Any]) -> None:
    ours = LinearDiscriminantAnalysis(**settings, random_state=0).fit(X, y)
    theirs = discriminant_analysis.LinearDiscriminantAnalysis(
        **settings, store_covariance=True
    ).fit(X, y)
    assert np.allclose(ours.coef_ * UNITS, theirs.coef_ * UNITS, rtol=1e-4, atol=1e-6)
    assert np.allclose(ours.intercept_, theirs.intercept_, rtol=1e-4, atol=1e-5)
    assert np.allclose(ours.means_ / UNITS, theirs.means_ / UNITS, atol=1e-6)
    assert np.allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-3)
    assert np.allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)
    assert (ours.predict(X) == theirs.predict(X)).mean() > 0.999


def test_linear_discriminants_with_priors() -> None:
    X, y = DATA[1]
    priors = [0.1, 0.2, 0.3, 0.4]
    ours = LinearDiscriminantAnalysis(priors=priors, random_state=0).fit(X, y)
    theirs = discriminant_analysis.LinearDiscriminantAnalysis(priors=priors).fit(X, y)
    assert np.allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)
    assert np.allclose(ours.xbar_, theirs.xbar_, atol=1e-4)
    for bad in ([0.5, 0.5], [0.5, 0.6, -0.1, 0.0], [0.1] * 4):
        with pytest.raises(ValueError, match=r"priors|Priors"):
            LinearDiscriminantAnalysis(priors=bad).fit(X, y)


def test_projections_separate_like_those_of_sklearn() -> None:
    X, y = DATA[1]
    ours = LinearDiscriminantAnalysis(random_state=0, n_components=2).fit(X, y).transform(X)
    theirs = discriminant_analysis.LinearDiscriminantAnalysis(n_components=2).fit_transform(X, y)
    signs = np.sign((ours * theirs).sum(axis=0))
    assert np.allclose(ours * signs, theirs, atol=1e-3)


@pytest.mark.parametrize(("X", "y"), DATA, ids=["binary", "several"])
@pytest.mark.parametrize("reg_param", [0.0, 0.2])
def test_quadratic_discriminants(X: Any, y: Any, reg_param: float) -> None:
    ours = QuadraticDiscriminantAnalysis(reg_param=reg_param, random_state=0).fit(X, y)
    theirs = discriminant_analysis.QuadraticDiscriminantAnalysis(
        reg_param=reg_param, store_covariance=True, tol=1e-12
    ).fit(X, y)
    assert np.allclose(ours.means_, theirs.means_, atol=1e-4)
    if reg_param == 0:
        assert np.allclose(ours.covariance_, theirs.covariance_, rtol=1e-3, atol=1e-4)
    assert np.allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-3)
    assert np.allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize(("X", "y"), DATA, ids=["binary", "several"])
@pytest.mark.parametrize("is_weighted", [True, False])
def test_gaussian_naive_bayes(X: Any, y: Any, is_weighted: bool) -> None:
    weights = np.random.default_rng(0).uniform(0.1, 9.0, len(y)) if is_weighted else None
    ours = GaussianNB(random_state=0).fit(X, y, sample_weight=weights)
    theirs = naive_bayes.GaussianNB().fit(X, y, weights)
    assert np.allclose(ours.theta_ / UNITS, theirs.theta_ / UNITS, atol=1e-5)
    assert np.allclose(ours.var_ / UNITS**2, theirs.var_ / UNITS**2, rtol=1e-4)
    assert np.allclose(ours.class_prior_, theirs.class_prior_, atol=1e-6)
    assert np.allclose(ours.class_count_, theirs.class_count_, rtol=1e-5)
    assert np.isclose(ours.epsilon_, theirs.epsilon_)
    assert np.allclose(ours.predict_log_proba(X), theirs.predict_log_proba(X), atol=1e-2)


@pytest.mark.parametrize("settings", [{}, {"n_components": 3}, {"n_components": 0.95}], ids=str)
@pytest.mark.parametrize("whiten", [True, False])
def test_pca(settings: dict[str, Any], whiten: bool) -> None:
    X = X2 @ np.random.default_rng(0).normal(size=(6, 6)) + 5.0
    ours = PCA(**settings, whiten=whiten, random_state=0).fit(X)
    theirs = decomposition.PCA(**settings, whiten=whiten, svd_solver="full").fit(X)
    assert ours.n_components_ == theirs.n_components_
    for name in ("components_", "explained_variance_", "explained_variance_ratio_"):
        assert np.allclose(getattr(ours, name), getattr(theirs, name), atol=1e-5)
    for name in ("mean_", "singular_values_", "noise_variance_"):
        assert np.allclose(getattr(ours, name), getattr(theirs, name), atol=1e-3)
    assert np.allclose(ours.transform(X), theirs.transform(X), atol=1e-4)
    back = ours.inverse_transform(ours.transform(X))
    assert np.allclose(back, theirs.inverse_transform(theirs.transform(X)), atol=1e-4)
    names = ours.get_feature_names_out().tolist()
    assert names == theirs.get_feature_names_out().tolist()


def test_removals_that_no_fit_would_survive_are_refused() -> None:
    X, y = np.arange(6.0)[:, None] ** 2, np.array(list("aabbbb"))
    for model, ids in (
        (LinearDiscriminantAnalysis(), [0, 1]),
        (QuadraticDiscriminantAnalysis(), [0]),
        (LinearDiscriminantAnalysis(priors=[0.5, 0.5]), [0, 1]),
    ):
        fitted = model.fit(X, y)
        before = fitted.digest()
        with pytest.raises(EmptyModelError, match="fit on the remaining rows would fail"):
            fitted.forget(ids)
        assert fitted.digest() == before
    pca = PCA(n_components=1).fit(X)
    with pytest.raises(EmptyModelError, match="minimum of 2"):
        pca.forget([0, 1, 2, 3, 4])
