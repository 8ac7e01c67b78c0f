"""FisherClassifier: its steps, bounds, noise and conduct, against dense formulas."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.utils.estimator_checks import check_estimator

import letheon
from letheon.checks import parametrize_with_checks
from letheon.convex import InfluenceClassifier, _fisher_expansion, _solve
from letheon.convex._fisher import FisherClassifier
from letheon.convex._fisher_noise import Rooted
from letheon.convex._fisher_walk import Walk
from letheon.convex._noise import NoiseSource
from letheon.convex._problem import Problem
from letheon.exceptions import AssumptionError, EmptyModelError, GuaranteeWarning, UnknownIdError
from tests.convex.reference import (
    Case,
    flat,
    gradient,
    hessian,
    influence_in_sums,
    residual,
    retrain,
)
from tests.convex.test_fisher_law import log_ratios
from tests.convex.test_fisher_noise import power
from tests.sharded.people import examples

Floats = NDArray[np.float64]
KINDS = ("logistic", "ovr", "softmax")


def make(
    kind: str, n: int = 400, p: int = 6, seed: int = 0, l2: float = 1e-2, reg: str = "per_sample"
) -> Case:
    """Rows with a column of ones, and overlapping classes."""
    rng = np.random.default_rng(seed)
    n_classes = 2 if kind == "logistic" else 3
    X = rng.normal(size=(n, p))
    scores = X @ rng.normal(size=(p, n_classes)) + rng.gumbel(size=(n, n_classes))
    y = scores.argmax(axis=1)
    y[:n_classes] = np.arange(n_classes)
    return Case(np.column_stack([X, np.ones(n)]), y, kind, l2, reg, n_classes=n_classes)


def fitted(case: Case, **settings: Any) -> FisherClassifier:
    multi_class = "softmax" if case.kind == "softmax" else "ovr"
    settings = {"l2": case.l2, "reg": case.reg, "multi_class": multi_class} | settings
    model = FisherClassifier(**settings)
    return model.fit(case.X[:, :-1], case.y)


def optimum(model: FisherClassifier) -> Floats:
    assert model.optimum_ is not None
    W: Floats = model.optimum_.open()[0]
    return W


def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish after the first step, whatever it leaves."""
    monkeypatch.setattr(Walk, "settle", lambda self: True)


# Steps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [1, 20, 100])
@pytest.mark.parametrize("reg", ["per_sample", "total"])
@pytest.mark.parametrize("state", ["published", "secret"])
def test_at_the_optimum_the_step_is_that_of_influence(
    monkeypatch: pytest.MonkeyPatch, kind: str, m: int, reg: str, state: str
) -> None:
    one_step(monkeypatch)
    case = make(kind, l2=1e-2 if reg == "per_sample" else 4.0, reg=reg)
    gone = np.arange(10, 10 + m)
    W = retrain(case)
    model = fitted(case, sigma=0.0, state=state)
    np.testing.assert_allclose(model.model_.weights, W, atol=1e-12)
    model.forget(gone)
    np.testing.assert_allclose(
        model.model_.weights, influence_in_sums(case, W, gone), rtol=0, atol=2e-12
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_step_is_that_of_our_influence_classifier(kind: str) -> None:
    case = make(kind, l2=4.0, reg="total")
    fisher = fitted(case, sigma=0.0, state="secret")
    influence = InfluenceClassifier(
        l2=4.0, reg="total", sigma=0.0, multi_class=fisher.multi_class
    ).fit(case.X[:, :-1], case.y)
    for person in (3, 17):
        fisher.forget([person])
        influence.forget([person])
        np.testing.assert_allclose(fisher.coef_, influence.coef_, rtol=0, atol=1e-5)
    fisher, influence = (copy.copy(model) for model in (fisher, influence))
    one = FisherClassifier(**fisher.get_params()).fit(case.X[:, :-1], case.y).forget([3])
    two = InfluenceClassifier(**influence.get_params()).fit(case.X[:, :-1], case.y)
    two.forget([3])
    again = FisherClassifier(**fisher.get_params()).fit(case.X[:, :-1], case.y)
    again.forget([3])
    assert not one.rebuilt
    np.testing.assert_allclose(again.coef_, two.coef_, rtol=0, atol=1e-12)


def test_the_step_repairs_what_is_left_and_influence_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_step(monkeypatch)
    case, gone = make("logistic"), np.array([5])
    model = fitted(case, sigma=0.0)
    W = retrain(case) + 0.02 / np.sqrt(7)
    vars(model).update(
        model_=type(model.model_)(W, model.model_.design, model.model_.classes),
    )
    model.forget(gone)
    best = retrain(case.without(gone))
    assert np.linalg.norm(influence_in_sums(case, W, gone) - best) > 1e-2
    assert np.linalg.norm(model.model_.weights - best) < 1e-3


def test_small_batches_are_more_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    one_step(monkeypatch)
    case, gone = make("logistic"), np.arange(20)
    best = retrain(case.without(gone))
    errors = {}
    for size in (1, 7, 20):
        model = fitted(case, sigma=0.0, state="secret", batch_size=size)
        receipt = model.forget(gone)
        assert receipt.rebuilt == {"hessians": -(-20 // size)}
        errors[size] = np.linalg.norm(model.model_.weights - best)
    assert errors[1] < errors[7] < errors[20] < 1e-2
    model = fitted(case, sigma=0.0, state="secret")
    model.forget(gone)
    assert np.linalg.norm(model.model_.weights - best) == pytest.approx(errors[20], rel=1e-6)


def test_batches_follow_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    one_step(monkeypatch)
    case, gone = make("ovr", n=60, p=3), np.arange(5)
    model = fitted(case, sigma=0.0)
    W = model.model_.weights
    for batch in ([0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]):
        rest = case.without(batch)
        step = np.linalg.solve(hessian(rest, W), flat(gradient(rest, W)))
        W = W - step.reshape(W.shape, order="F")
    model.forget(gone, batch_size=2)
    np.testing.assert_allclose(model.model_.weights, W, atol=1e-11)


# Bounds


@examples(60)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10**6),
    n=st.integers(12, 60),
    m=st.integers(1, 4),
    l2=st.sampled_from([3e-3, 0.05, 0.5]),
    tol=st.sampled_from([1e-8, 1e-5]),
    sigma=st.sampled_from([0.003, 0.1]),
    state=st.sampled_from(["published", "secret"]),
)
def test_the_laws_of_removal_and_retrain_are_as_close_as_stated(
    kind: str, seed: int, n: int, m: int, l2: float, tol: float, sigma: float, state: str
) -> None:
    case = make(kind, n=n, p=2, seed=seed, l2=l2)
    model = fitted(case, tol=tol, sigma=sigma, state="secret", noise_seed=seed)
    if state == "published":
        # The sealed optimum shows where the steps ended; they shall start from the noisy model.
        vars(model).update(optimum_=None)
        model._sealed = FisherClassifier(state="secret")._sealed  # type: ignore[method-assign]
    rest = case
    for person in range(5, 5 + m):
        receipt = model.forget([person])
        rest = rest.without([person - (5 + m - m) if False else 5])
    found = model.account_.closeness
    if receipt.rebuilt.get("retrains"):
        assert found.shift == found.spread == 0.0
        return
    expansion = model.cache_.content
    assert expansion is not None
    best = retrain(rest)
    worst = np.random.default_rng(seed).normal(size=best.shape)
    worst *= 0.9 * tol * len(rest.y) / np.linalg.norm(worst)
    V = best + np.linalg.solve(hessian(rest, best), flat(worst)).reshape(best.shape, order="F")
    assert residual(rest, V) <= tol * len(rest.y)
    F = hessian(rest, expansion.curvature.point) / len(rest.y)
    other = hessian(rest, V) / len(rest.y)
    shift = np.linalg.norm(power(F, 0.25) @ flat(optimum(model) - V)) / sigma
    u = log_ratios(F, other)
    assert shift <= found.shift * (1 + 1e-9)
    assert np.abs(u).max() <= found.spread + 1e-9
    kl = (shift**2 * np.exp(np.abs(u).max()) + np.sum(np.expm1(u) - u)) / 2
    assert kl <= model.kl_bound_ + 1e-9
    assert model.epsilon_ <= model.epsilon * (1 + 1e-9)
    assert 0 <= model.account_.used <= 1
