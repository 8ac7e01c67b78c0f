"""FisherClassifier: its steps, bounds, noise and conduct, against dense formulas."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import check_estimator

import letheon
from letheon.checks import parametrize_with_checks
from letheon.exceptions import AssumptionError, EmptyModelError, GuaranteeWarning, UnknownIdError
from letheon.linear import InfluenceClassifier, _fisher_law, _fisher_walk
from letheon.linear._fisher import FisherClassifier
from letheon.linear._fisher_law import Closeness
from letheon.linear._fisher_walk import FisherAccount, NewtonWalk
from letheon.linear._problem import FitProblem
from letheon.noise import NoiseSource
from tests.linear.people import form_no_matrix
from tests.linear.reference import (
    LinearCase,
    flat,
    gradient,
    hessian,
    influence_in_sums,
    residual,
    retrain,
)
from tests.linear.test_fisher_law import log_ratios
from tests.linear.test_fisher_noise import power
from tests.marks import soak
from tests.sharded.people import examples

Floats = NDArray[np.float64]
KINDS = ("logistic", "ovr", "softmax")


def make(
    kind: str, n: int = 400, p: int = 6, seed: int = 0, l2: float = 1e-2, reg: str = "per_sample"
) -> LinearCase:
    """Rows with a column of ones, and overlapping classes."""
    rng = np.random.default_rng(seed)
    n_classes = 2 if kind == "logistic" else 3
    X = rng.normal(size=(n, p))
    scores = X @ rng.normal(size=(p, n_classes)) + rng.gumbel(size=(n, n_classes))
    y = scores.argmax(axis=1)
    y[:n_classes] = np.arange(n_classes)
    return LinearCase(np.column_stack([X, np.ones(n)]), y, kind, l2, reg, n_classes=n_classes)


def fitted(case: LinearCase, **settings: Any) -> FisherClassifier:
    multi_class = "softmax" if case.kind == "softmax" else "ovr"
    shared: dict[str, Any] = {"l2": case.l2, "reg": case.reg, "multi_class": multi_class}
    model = FisherClassifier(**(shared | settings))
    return model.fit(case.X[:, :-1], case.y)


def optimum(model: FisherClassifier) -> Floats:
    assert model.optimum_ is not None
    W: Floats = model.optimum_.open()[0]
    return W


def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish after the first step, whatever it leaves."""
    monkeypatch.setattr(NewtonWalk, "run_until_hidden", lambda self: True)


# Steps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [soak(1), 20, soak(100)])
@pytest.mark.parametrize("reg", ["per_sample", "total"])
@pytest.mark.parametrize("state", ["published", soak("secret")])
def test_at_the_optimum_the_step_is_that_of_influence(
    monkeypatch: pytest.MonkeyPatch, kind: str, m: int, reg: str, state: str
) -> None:
    one_step(monkeypatch)
    case = make(kind, l2=1e-2 if reg == "per_sample" else 4.0, reg=reg)
    gone = np.arange(10, 10 + m)
    W = retrain(case)
    model = fitted(case, sigma=0.0, state=state, tol=1e-13)
    np.testing.assert_allclose(model.model_.weights, W, atol=1e-12)
    model.forget(gone)
    np.testing.assert_allclose(
        model.model_.weights, influence_in_sums(case, W, gone), rtol=0, atol=2e-12
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_step_is_that_of_our_influence_classifier(kind: str) -> None:
    case = make(kind, l2=400.0, reg="total")
    shared: dict[str, Any] = {"l2": 400.0, "reg": "total", "sigma": 0.0, "tol": 1e-13}
    fisher = fitted(case, **shared, state="secret")
    shared |= {"multi_class": fisher.multi_class}
    influence = InfluenceClassifier(**shared).fit(case.X[:, :-1], case.y)
    receipt = fisher.forget([3])
    assert not receipt.rebuilt
    assert not influence.forget([3]).rebuilt
    np.testing.assert_allclose(fisher.coef_, influence.coef_, rtol=0, atol=1e-12)
    np.testing.assert_allclose(fisher.intercept_, influence.intercept_, rtol=0, atol=1e-12)


def test_the_step_repairs_what_is_left_and_influence_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_step(monkeypatch)
    case, gone = make("logistic"), np.array([5])
    model = fitted(case, sigma=0.0)
    W = retrain(case) + 0.02 / np.sqrt(7)
    vars(model).update(model_=replace(model.model_, weights=W))
    model.forget(gone)
    best = retrain(case.without(gone))
    assert np.linalg.norm(influence_in_sums(case, W, gone) - best) > 1e-2
    assert np.linalg.norm(model.model_.weights - best) < 1e-3


def test_small_batches_are_more_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    one_step(monkeypatch)
    gone, sizes = np.arange(20), (1, 7, 20)
    errors = np.empty((4, 3))
    for seed in range(4):
        case = make("logistic", seed=seed)
        best = retrain(case.without(gone))
        for column, size in enumerate(sizes):
            model = fitted(case, sigma=0.0, state="secret", batch_size=size)
            receipt = model.forget(gone)
            assert receipt.rebuilt == {"hessians": -(-20 // size)}
            errors[seed, column] = np.linalg.norm(model.model_.weights - best)
        at_once = fitted(case, sigma=0.0, state="secret")
        at_once.forget(gone)
        error = np.linalg.norm(at_once.model_.weights - best)
        assert error == pytest.approx(errors[seed, 2], rel=1e-4)
    assert (errors[:, 0] < errors[:, 2] / 5).all()
    means = np.exp(np.log(errors).mean(axis=0))
    assert means[0] < means[1] < means[2] < 1e-2


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


class WalkRecorder(FisherClassifier):
    """Keeps the last walk, to see where it ended."""

    walk: NewtonWalk

    def _prepare_release(self, positions: Any, counts: Any, walk: NewtonWalk, roots: Any) -> Any:
        self.walk = walk
        return super()._prepare_release(positions, counts, walk, roots)


@examples(40)
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
    multi_class = "softmax" if kind == "softmax" else "ovr"
    model = WalkRecorder(
        l2=l2, multi_class=multi_class, tol=tol, sigma=sigma, state=state, noise_seed=seed
    ).fit(case.X[:, :-1], case.y)
    for person in range(5, 5 + m):
        receipt = model.forget([person])
    rest, closeness = case.without(np.arange(5, 5 + m)), model.account_.closeness
    if receipt.rebuilt.get("retrains") or len(model.classes_) < case.n_classes:
        assert closeness.shift == closeness.spread == 0.0
        return
    best = retrain(rest)
    # Not only the optimum: every point at which a retrain may stop.
    left = np.random.default_rng(seed).normal(size=best.shape)
    left *= 0.9 * tol * len(rest.y) / np.linalg.norm(left)
    V = best + np.linalg.solve(hessian(rest, best), flat(left)).reshape(best.shape, order="F")
    assert residual(rest, V) <= tol * len(rest.y)
    expansion = model.walk.fisher.expansion
    assert expansion is not None
    F = hessian(rest, expansion.curvature.point) / len(rest.y)
    u = log_ratios(F, hessian(rest, V) / len(rest.y))
    shift = np.linalg.norm(power(F, 0.25) @ flat(model.walk.W - V)) / sigma
    assert shift <= closeness.shift * (1 + 1e-9)
    assert np.abs(u).max() <= closeness.spread + 1e-9
    kl = (shift**2 * np.exp(np.abs(u).max()) + np.sum(np.expm1(u) - u)) / 2
    assert kl <= model.kl_bound_ + 1e-9
    assert model.epsilon_ <= model.epsilon * (1 + 1e-9)
    assert 0 <= model.account_.used <= 1


def draws(model: FisherClassifier, problem: FitProblem, W: Floats, count: int) -> Floats:
    """Return draws of the noise around one optimum, one per line."""
    source, roots = NoiseSource(5), model._noise_roots(model._fisher_at(problem, W), W)
    return np.array([flat(model._add_noise(W, roots, source) - W) for _ in range(count)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("covariance", ["fisher", "isotropic"])
def test_the_noise_has_the_covariance_of_the_definition(kind: str, covariance: str) -> None:
    case = make(kind, n=80, p=2)
    model = fitted(case, sigma=0.3, covariance=covariance, state="secret")
    model.forget([4, 9])
    rest, W = case.without([4, 9]), optimum(model)
    problem = model._build_problem(model._training_rows())
    sample = draws(model, problem, W, 1500)
    size = W.size
    shape = power(hessian(rest, W) / 78, -0.5) if covariance == "fisher" else np.eye(size)
    root = power(0.09 * shape, -0.5)
    whitened = sample @ root
    # Entries of a sample covariance have a deviation of sqrt(2 / 1500) at most.
    assert np.abs(whitened.T @ whitened / 1500 - np.eye(size)).max() < 5.5 * np.sqrt(2 / 1500)
    assert np.abs(whitened.mean(axis=0)).max() < 5 / np.sqrt(1500)


def test_what_is_published_is_the_optimum_and_noise_of_its_own_scale() -> None:
    case = make("logistic", n=80, p=2)
    W = retrain(case)
    root = power(0.09 * power(hessian(case, W) / 80, -0.5), -0.5)
    models = [fitted(case, sigma=0.3) for _ in range(120)]
    whitened = np.array([root @ flat(model.model_.weights - W) for model in models])
    assert abs(np.mean(whitened**2) - 1) < 5 * np.sqrt(2 / whitened.size)
    for model in models:
        model.forget([4])
    rest = case.without([4])
    W = retrain(rest)
    root = power(0.09 * power(hessian(rest, W) / 79, -0.5), -0.5)
    whitened = np.array([root @ flat(model.model_.weights - W) for model in models])
    assert abs(np.mean(whitened**2) - 1) < 5 * np.sqrt(2 / whitened.size)


# Sequences and caches


@pytest.mark.parametrize("kind", KINDS)
def test_the_cached_matrix_follows_the_rows(kind: str) -> None:
    case = make(kind, n=60, p=3, l2=0.05)
    model = fitted(case, state="secret", sigma=0.05)
    gone: list[int] = []
    for request in ([3], [10, 11], [20], list(range(30, 38)), [50]):
        model.forget(request)
        gone += request
        rest, expansion = case.without(gone), model.cache_.content
        assert expansion is not None
        rows, point = model.rows_, expansion.curvature.point
        assert expansion.scores.shape[0] == rows.n_slots
        np.testing.assert_allclose(expansion.scores, rows.X @ point, atol=1e-10)
        blocks = [np.tril(b.hessian) + np.tril(b.hessian, -1).T for b in expansion.curvature.blocks]
        ridge = rest.ridge * np.eye(len(blocks[0]))
        whole = hessian(rest, point)
        size = len(blocks[0])
        for k, block in enumerate(blocks):
            part = whole[k * size : (k + 1) * size, k * size : (k + 1) * size]
            np.testing.assert_allclose(block + ridge, part, atol=1e-9)
        assert np.linalg.norm(optimum(model) - retrain(rest)) <= 1e-2
    assert model.rows_.n_slots < 60


def test_every_request_is_certified_by_itself() -> None:
    case = make("logistic", n=300, p=4)
    model = fitted(case)
    kinds = set()
    for person in range(100):
        claim = model.forget([person]).guarantee
        kinds.add(claim.kind)
        assert claim.spent is not None
        assert 0 < claim.spent <= 1.0 == claim.budget
        assert model.epsilon_ <= 1.0
    assert kinds == {"certified"}
    assert np.isfinite(model.kl_bound_)


def test_secret_and_published_end_near_each_other() -> None:
    case = make("ovr", n=200, p=3)
    ends = []
    for state in ("published", "secret"):
        model = WalkRecorder(l2=1e-2, state=state).fit(case.X[:, :-1], case.y)
        model.forget([1, 2])
        ends.append(model.walk.W)
        assert (model.optimum_ is None) == (state == "published")
        assert model.guarantee_.requests == "adaptive"
    assert np.linalg.norm(ends[0] - ends[1]) < 1e-2


def test_a_hessian_that_is_too_old_is_taken_again_but_not_for_isotropic_noise() -> None:
    case = make("logistic", n=200, p=4)
    gone = np.flatnonzero(case.y == 1)[:40]
    fisher = fitted(case, state="secret", sigma=1.0)
    assert fisher.forget(gone).rebuilt.get("hessians") == 1
    isotropic = fitted(case, state="secret", sigma=1.0, covariance="isotropic")
    assert "hessians" not in isotropic.forget(gone).rebuilt
    assert isotropic.account_.closeness.spread == 0.0


def test_little_noise_takes_further_steps() -> None:
    case = make("logistic", n=200, p=4)
    much, little = (fitted(case, state="secret", sigma=sigma) for sigma in (1.0, 1e-5))
    assert "polishes" not in much.forget([7]).rebuilt
    assert little.forget([7]).rebuilt["polishes"] >= 1
    assert little.guarantee_.kind == "certified"


def test_a_stop_rule_too_loose_for_the_noise_means_retraining() -> None:
    case = make("logistic", n=200, p=4)
    model = fitted(case, sigma=1e-6, tol=1e-6)
    receipt = model.forget([7])
    assert receipt.rebuilt == {"retrains": 1}
    assert (receipt.guarantee.kind, receipt.guarantee.spent) == ("certified", 0.0)
    assert receipt.work == 1.0
    assert model.n_rows_ == 199


def test_a_removal_that_no_step_reaches_ends_in_a_retrain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _fisher_walk.FisherMatrix, "newton_step", lambda self, W, gradient: -gradient
    )
    case = make("logistic", n=60, p=2)
    model = fitted(case)
    receipt = model.forget([7])
    assert receipt.rebuilt["retrains"] == 1
    assert receipt.guarantee.kind == "certified"
    assert np.linalg.norm(model.model_.weights - retrain(case.without([7]))) < 1.0


def test_the_last_of_a_class_leaves_by_a_retrain() -> None:
    case = make("ovr", n=40, p=2)
    y = np.where(case.y == 2, 0, case.y)
    y[5] = 2
    model = FisherClassifier().fit(case.X[:, :-1], y)
    assert model.forget([5]).rebuilt == {"retrains": 1}
    np.testing.assert_array_equal(model.classes_, [0, 1])


def test_a_row_that_drowns_all_others_does_not_spoil_the_noise() -> None:
    case = make("logistic", n=60, p=2)
    X = case.X[:, :-1].copy()
    X[7] *= 1e4
    model = FisherClassifier(l2=1e-2, sigma=0.1, state="secret").fit(X, case.y)
    receipt = model.forget([7])
    assert receipt.guarantee.kind == "certified"
    assert np.linalg.norm(model.model_.weights - retrain(case.without([7]))) < 3.0


# Many columns


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ["published", "secret"])
def test_many_columns_need_no_matrix(
    monkeypatch: pytest.MonkeyPatch, kind: str, state: str
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a Hessian was formed")

    form_no_matrix(monkeypatch, above=5)
    monkeypatch.setattr(FitProblem, "hessian_at", refuse)
    case = make(kind, n=80, p=12, l2=0.05)
    case = replace(case, X=np.where(np.abs(case.X) > 0.8, case.X, 0.0))
    X = sp.csr_array(case.X[:, :-1])
    model = WalkRecorder(
        l2=0.05, multi_class="softmax" if kind == "softmax" else "ovr", state=state
    )
    model.fit(X, case.y)
    gone: list[int] = []
    for request, size in (([7], None), ([3, 9, 30], None), ([11, 12], 1)):
        receipt = model.forget(request, batch_size=size)
        gone += request
        rest = case.without(gone)
        assert receipt.guarantee.kind == "certified"
        assert "hessians" not in receipt.rebuilt
        left = residual(rest, model.walk.W)
        assert left == pytest.approx(model.walk.evaluation.residual, rel=1e-6, abs=1e-10)
        assert np.linalg.norm(model.walk.W - retrain(rest)) <= left / rest.ridge + 1e-9
    assert model.n_rows_ == 74
    assert model.cache_.content is None


def test_sparse_and_dense_rows_give_the_same_model() -> None:
    case = make("ovr", n=70, p=5)
    X = np.where(np.abs(case.X[:, :-1]) > 0.7, case.X[:, :-1], 0.0)
    models = [
        FisherClassifier(l2=0.05, noise_seed=3).fit(rows, case.y) for rows in (X, sp.csr_array(X))
    ]
    for model in models:
        model.forget([5, 6])
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, atol=1e-9)


# Files


@pytest.mark.parametrize("state", ["published", "secret"])
def test_a_saved_model_goes_on(tmp_path: Path, state: str) -> None:
    case = make("ovr", n=60, p=3, l2=0.05)
    model = fitted(case, state=state)
    model.forget([4])
    letheon.save(model, tmp_path / "model.letheon")
    for other in (letheon.load(tmp_path / "model.letheon"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.coef_, model.coef_)
        assert other.account_ == model.account_
        assert other.guarantee_ == model.guarantee_
        assert other.cache_.content is None
        if state == "secret":
            np.testing.assert_array_equal(optimum(other), optimum(model))
        else:
            assert other.optimum_ is None
        receipt = other.forget([5])
        assert receipt.guarantee.kind == "certified"
        assert receipt.rebuilt.get("hessians", 0) >= 1
        assert other.n_rows_ == 58
    assert model.n_rows_ == 59


def test_what_an_earlier_version_released_is_not_certified() -> None:
    """Its noise was added in doubles. The next release is proved by itself."""
    model = fitted(make("ovr", n=60, p=3, l2=0.05))
    old = Closeness._from_state({"shift": 0.1, "spread": 0.0, "dimension": 1})
    account = FisherAccount._from_state({"closeness": old, "used": 0.25, "most": old})
    vars(model).update(account_=account)
    assert model.guarantee_.kind == "empirical"
    assert model.epsilon_ == np.inf
    assert model.forget([4]).guarantee.kind == "certified"
    assert model.epsilon_ <= 1.0


@pytest.mark.parametrize("used", [float("nan"), float("inf"), 1.5])
def test_an_account_that_does_not_hold_is_no_certificate(used: float) -> None:
    model = fitted(make("logistic", n=60, p=3))
    account = copy.copy(model.account_)
    object.__setattr__(account, "used", used)
    vars(model).update(account_=account)
    assert model.guarantee_.kind == "empirical"


def test_a_copy_has_a_life_of_its_own() -> None:
    case = make("logistic", n=60, p=3, l2=0.05)
    model = fitted(case, state="secret")
    before = model.digest()
    twin = copy.copy(model)
    twin.forget([1])
    assert model.digest() == before
    assert (model.n_rows_, twin.n_rows_) == (60, 59)
    model.forget([2])
    assert twin.n_rows_ == 59


# Doubts and bad input


def test_training_that_does_not_converge_proves_nothing() -> None:
    case = make("logistic", n=60, p=3)
    with pytest.raises(AssumptionError, match="above the tolerance"):
        fitted(case, max_iter=1)
    with pytest.warns() as warned:
        model = fitted(case, max_iter=1, if_unproved="downgrade")
    assert {warning.category for warning in warned} == {ConvergenceWarning, GuaranteeWarning}
    assert model.guarantee_.kind == "empirical"
    assert model.guarantee_.epsilon is None


def test_a_covariance_that_is_not_known_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make("logistic", n=60, p=8)
    model, weak = fitted(case), fitted(case, if_unproved="downgrade")
    before = model.digest()
    monkeypatch.setattr(_fisher_law, "COVARIANCE_ERROR", 1e-18)
    with pytest.raises(AssumptionError, match="covariance of the noise"):
        model.forget([3])
    assert model.digest() == before
    with pytest.warns(GuaranteeWarning, match="covariance of the noise"):
        receipt = weak.forget([3])
    assert receipt.rebuilt["retrains"] == 1
    assert receipt.guarantee.kind == "empirical"
    monkeypatch.undo()
    assert weak.forget([4]).guarantee.kind == "empirical"
    assert weak.settle().guarantee_.kind == "certified"


@pytest.mark.parametrize("error", [1.0, float("inf"), float("nan")])
def test_a_matrix_that_rounding_has_worn_out_is_taken_again(error: float) -> None:
    model = fitted(make("logistic", n=60, p=3), state="secret")
    assert model.cache_.content is not None
    model.cache_.content.error = error
    receipt = model.forget([3])
    assert receipt.rebuilt["hessians"] == 1
    assert receipt.guarantee.kind == "certified"
    assert model.cache_.content.error < 1e-9


@pytest.mark.parametrize("scale", [1e3, 1e4])
def test_rows_too_long_for_doubles_are_refused(scale: float) -> None:
    case = make("logistic", n=60, p=2)
    X = case.X[:, :-1] * scale
    with pytest.raises(AssumptionError, match="rounding"):
        FisherClassifier(l2=1e-6).fit(X, case.y)


@pytest.mark.parametrize("settings", [{"sigma": 0.0}, {"noise_seed": 1}])
def test_no_noise_or_known_noise_is_empirical(settings: dict[str, Any]) -> None:
    model = fitted(make("logistic", n=60, p=3), **settings)
    claim = model.forget([3]).guarantee
    assert claim.kind == "empirical"
    assert (claim.epsilon, claim.spent) == (None, None)
    if settings == {"sigma": 0.0}:
        assert model.epsilon_ == model.kl_bound_ == np.inf


BAD: list[tuple[dict[str, Any], str]] = [
    ({"sigma": -1.0}, "sigma"),
    ({"sigma": float("nan")}, "sigma"),
    ({"epsilon": 0.0}, "epsilon"),
    ({"epsilon": -1.0}, "epsilon"),
    ({"delta": 0.0}, "delta"),
    ({"delta": 1.0}, "delta"),
    ({"delta": 2.0}, "delta"),
    ({"l2": 0.0}, "l2"),
    ({"covariance": "full"}, "covariance"),
    ({"state": "open"}, "state"),
    ({"batch_size": 0}, "batch_size"),
    ({"batch_size": True}, "batch_size"),
    ({"batch_size": 1.5}, "batch_size"),
    ({"noise_seed": -1}, "noise_seed"),
    ({"rows": "refuse", "row_norm": 0.1}, "row_norm"),
]


@pytest.mark.parametrize(("settings", "name"), BAD)
def test_bad_settings_are_refused_and_change_nothing(settings: dict[str, Any], name: str) -> None:
    case = make("logistic", n=40, p=2)
    model = fitted(case, noise_seed=3)
    before, draws = model.digest(), model.source_.n_draws
    model.set_params(**settings)
    with pytest.raises((ValueError, AssumptionError), match=name):
        model.fit(case.X[:, :-1], case.y)
    model.set_params(**FisherClassifier(noise_seed=3, l2=1e-2).get_params())
    assert model.digest() == before
    assert model.source_.n_draws == draws


@pytest.mark.parametrize("state", ["published", "secret"])
def test_bad_requests_change_nothing(state: str) -> None:
    case = make("logistic", n=40, p=2)
    model = fitted(case, noise_seed=3, state=state)
    before, draws = model.digest(), model.source_.n_draws
    for ids, size, error in (
        ([3, 99], None, UnknownIdError),
        (np.flatnonzero(case.y == 1), None, EmptyModelError),
        ([3, 4], 3, ValueError),
        ([3, 4], 0, ValueError),
        ([3, 4], True, ValueError),
        ([3, 4], "two", ValueError),
    ):
        with pytest.raises(error):
            model.forget(ids, batch_size=size)
        assert model.digest() == before
        assert model.source_.n_draws == draws
    X = case.X[:, :-1].copy()
    X[3, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model.fit(X, case.y)
    assert model.digest() == before
    assert not model.forget([3, 4], batch_size=2).rebuilt.get("retrains")


def test_the_batch_size_is_checked_before_a_retrain() -> None:
    case = make("ovr", n=40, p=2)
    y = np.where(case.y == 2, 0, case.y)
    y[5] = 2
    model = FisherClassifier().fit(case.X[:, :-1], y)
    with pytest.raises(ValueError, match="batch_size"):
        model.forget([5], batch_size=2)
    assert model.n_rows_ == 40


def test_a_failure_while_publishing_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(make("logistic", n=40, p=2), state="secret", noise_seed=3)
    before = model.digest()
    content = model.cache_.content
    assert content is not None
    matrix = content.curvature.blocks[0].hessian.copy()

    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(FisherClassifier, "_add_noise", fail)
    with pytest.raises(MemoryError):
        model.forget([3])
    monkeypatch.undo()
    assert model.digest() == before
    np.testing.assert_array_equal(content.curvature.blocks[0].hessian, matrix)
    assert np.linalg.norm(content.scores[3]) > 0


# Facts and conventions


def test_the_definition_explains_every_assumption() -> None:
    for reg in ("per_sample", "total"):
        model = fitted(make("logistic", n=40, p=2), reg=reg)
        for code in model.guarantee_.assumptions:
            assert f"`{code}`" in model.facts.definition
    for part in ("**Claim.**", "**Assumptions.**", "**Removal.**", "**Proof.**"):
        assert part in FisherClassifier.facts.definition


def test_residual_state_names_what_is_kept() -> None:
    for state in ("published", "secret"):
        model = fitted(make("logistic", n=40, p=2), state=state)
        named = {text.partition(":")[0] for text in model.residual_state_}
        assert ("optimum_" in named) == (state == "secret")
        assert named <= set(vars(model))


@parametrize_with_checks([FisherClassifier()])
def test_it_forgets_as_models_must(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.soak
@parametrize_with_checks([FisherClassifier(state="secret", multi_class="softmax")])
def test_it_forgets_as_models_must_with_other_settings(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_sklearn_conventions() -> None:
    estimator = FisherClassifier(noise_seed=0)
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    failed = [result["check_name"] for result in results if result["status"] == "failed"]
    assert failed == []
    assert len(results) > 40


def test_parameters_beyond_the_grid_of_a_tiny_sigma_are_refused() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.raises(AssumptionError, match="sigma=1e-12 is too small"):
        FisherClassifier(sigma=1e-12).fit(X, X[:, 0] > 0)
