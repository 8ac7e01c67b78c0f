"""Influence: the step, the account, what happens when it is used up, and long sequences."""

import copy
import itertools
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from letheon import load, save
from letheon.linear import _newton
from letheon.linear._account import (
    Account,
    GradientLimits,
    Mechanism,
    ObjectiveNoise,
    OutputNoise,
    residual_limit,
)
from letheon.linear._calibrate import ReleaseGrid, gaussian_mu
from letheon.linear._curvature import Curvature
from letheon.linear._newton import RemovalContext, RowsToRemove, propose_removal
from tests.linear import reference as ref
from tests.linear.people import (
    KINDS,
    case_of,
    estimator,
    examples,
    form_no_matrix,
    library_problem,
    make_rows,
    table_of_section_1,
    tilt_of,
    weights_of,
)

# m: nothing, sum form, literal reading, jackknife, regulariser left out.
TABLE = {
    1: (1.9e-2, 2.4e-5, 7.6, 2.7e-4, 4.0e-3),
    20: (8.7e-2, 5.4e-4, 1.6, 4.6e-3, 6.5e-2),
    100: (1.6e-1, 1.9e-3, 3.3e-1, 4.1e-2, 5.4e-1),
}


# Little noise and a budget that no removal here exhausts: every step is a plain one.
AMPLE: dict[str, Any] = {"sigma": 100.0, "epsilon": 1e5}


def proposed(case: ref.LinearCase, W: ref.Floats, gone: Any) -> ref.Floats:
    """The library's step with a Hessian taken at W."""
    problem, rest = library_problem(case), case.without(gone)
    setting = RemovalContext(problem.loss, case.ridge, rest.ridge, len(rest.y))
    leaving = RowsToRemove(case.X[gone], case.y[gone])
    return propose_removal(Curvature.from_problem(problem, W), W, leaving, setting).W


@pytest.mark.parametrize("m", TABLE)
def test_errors_of_the_published_table(m: int) -> None:
    case, gone = table_of_section_1(), np.arange(m)
    W, goal = ref.retrain(case), ref.retrain(case.without(gone))
    points = [
        W,
        proposed(case, W, gone),
        ref.influence_taken_literally(case, W, gone),
        ref.jackknife(case, W, gone),
        ref.influence_without_regulariser(case, W, gone),
    ]
    errors = [float(np.linalg.norm(point - goal)) for point in points]
    for error, published in zip(errors, TABLE[m], strict=True):
        assert 0.5 < error / published < 2.0
    sums, means = (f(case, W, gone) for f in (ref.influence_in_sums, ref.influence_in_means))
    np.testing.assert_allclose(sums, means, rtol=1e-9)


@pytest.mark.parametrize("m", [1, 20, 100])
def test_forget_makes_the_step_of_the_sum_form(m: int) -> None:
    case = table_of_section_1()
    model = estimator(l2=1e-2, fit_intercept=False, **AMPLE)
    model.fit(case.X, case.y)
    case = replace(case, tilt=tilt_of(model))
    W = weights_of(model)
    assert ref.residual(case, W) <= 1e-9
    receipt = model.forget(list(range(m)))
    assert receipt.rebuilt == {}
    expected = ref.influence_in_sums(case, W, np.arange(m))
    # The linear system is solved to a tenth of what the step leaves anyway.
    left = ref.residual(case.without(np.arange(m)), expected)
    rest = case.without(np.arange(m))
    assert np.linalg.norm(weights_of(model) - expected) <= left / rest.ridge
    assert model.account_.spent >= ref.residual(rest, weights_of(model))


def settings_of(kind: str) -> dict[str, Any]:
    return {"sigma": 3.0, "l2": 0.05, "epsilon": 2.0} if kind != "squared" else {"sigma": 1.0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reg", ["per_sample", "total"])
def test_fit_is_the_optimum_and_the_account_starts_there(kind: str, reg: str) -> None:
    X, y = make_rows(kind)
    model = estimator(kind, reg=reg, **settings_of(kind)).fit(X, y)
    case = case_of(model, kind, X, y)
    goal = ref.retrain(case)
    residual = ref.residual(case, weights_of(model))
    assert np.linalg.norm(weights_of(model) - goal) <= residual / case.ridge + 1e-12
    assert model.account_.spent == pytest.approx(residual, abs=1e-13 * len(y) * 10)
    # What rounding may hide is added.
    assert model.exact_residual() <= model.account_.spent <= residual + 1e-11
    # What a retrain may leave itself is kept back: an eighth of the distance that is hidden.
    hidden = model.sigma * gaussian_mu(model.epsilon, model.delta)
    assert model.account_.limit == pytest.approx(7 / 8 * hidden * case.ridge, rel=1e-4)
    assert model.account_.limit < hidden * case.ridge
    assert np.abs(model.model_.weights - weights_of(model)).max() > model.sigma / 10


def test_account_starts_with_what_a_lazy_optimiser_left() -> None:
    X, y = make_rows()
    lazy = estimator(tol=1e-4, max_iter=2, **AMPLE)
    with pytest.warns(UserWarning, match="training stopped at a gradient"):
        lazy.fit(X, y)
    left = ref.residual(case_of(lazy, "logistic", X, y), weights_of(lazy))
    assert lazy.account_.spent == pytest.approx(left)
    assert left > 1e-4
    lazy.forget([0])
    assert lazy.account_.spent > left


@examples(100)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**20),
    budget=st.sampled_from([0.01, 0.1, 1.0, 30.0]),
    bound=st.sampled_from(["tightest", "data-dependent", "worst-case"]),
    reg=st.sampled_from(["per_sample", "total"]),
    actions=st.lists(
        st.sampled_from(["one", "one", "three", "batches", "settle", "pickle", "copy"]),
        min_size=1,
        max_size=8,
    ),
    wide=st.booleans(),
)
def test_spent_is_never_below_the_residual(wide: bool, **arguments: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if wide:
            form_no_matrix(patch, above=0)
        check_spent(**arguments)


def check_spent(
    kind: str, seed: int, budget: float, bound: str, reg: str, actions: list[str]
) -> None:
    """Whatever was done, the account covers what is really left."""
    X, y = make_rows(kind, 45, 3, seed)
    # Loose training: the start of the account is part of the sum.
    model = estimator(kind, sigma=budget, bound=bound, reg=reg, tol=1e-5, noise_seed=seed)
    model.fit(X, y)
    remaining, account = np.arange(45), model.account_
    for number, action in enumerate(actions):
        rng = np.random.default_rng([seed, number])
        model, gone = acted(model, action, remaining, rng)
        remaining = np.setdiff1d(remaining, gone)
        case = case_of(model, kind, X[remaining], y[remaining])
        case = replace(case, scale=float(getattr(model, "huber_scale", 1.0)))
        residual = ref.residual(case, weights_of(model))
        rounding = 1e-13 * len(remaining) * (1 + float(np.abs(weights_of(model)).max()))
        assert residual <= model.account_.spent + rounding
        assert model.account_.is_covered
        for name in ("exact", "polishes", "retrains"):
            assert getattr(model.account_, name) >= getattr(account, name) * (action != "settle")
        account = model.account_


def acted(model: Any, action: str, remaining: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Do something to a model; return it and who left."""
    if action == "settle":
        return model.settle(), []
    if action == "pickle":
        return pickle.loads(pickle.dumps(model)), []
    if action == "copy":
        return copy.copy(model), []
    gone = rng.choice(remaining, {"one": 1, "three": 3, "batches": 4}[action], replace=False)
    model.forget(gone.tolist(), batch_size=2 if action == "batches" else None)
    return model, gone


def test_budget_adds_up_over_requests() -> None:
    X, y = make_rows(n=200)
    model = estimator(**AMPLE).fit(X, y)
    spent = [model.account_.spent]
    for person in range(20):
        assert model.forget([person]).rebuilt == {}
        spent.append(model.account_.spent)
    assert (np.diff(spent) > 0).all()
    alone = estimator(**AMPLE).fit(X, y)
    alone.forget([19])
    assert model.account_.spent > 5 * alone.account_.spent


def fix_limit(patch: pytest.MonkeyPatch, limit: float) -> None:
    patch.setattr(OutputNoise, "compute_limits", lambda *_: GradientLimits(limit, limit))


def escalation(patch: pytest.MonkeyPatch, limit: float, *, most_polishes: int = 10) -> Any:
    """A model whose next removal may leave no more than `limit`; returns model and receipt."""
    patch.setattr(_newton, "_MOST_POLISHES", most_polishes)
    X, y = make_rows(n=60)
    model = estimator(sigma=0.5).fit(X, y)
    with patch.context() as limited:
        fix_limit(limited, limit)
        return model, model.forget([3, 4])


def test_every_escalation_is_reached_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = make_rows(n=60)
    free = estimator(sigma=0.5).fit(X, y)
    with monkeypatch.context() as patch:
        fix_limit(patch, 1e9)
        free.forget([3, 4])
    bound, exact = free.account_.spent, free.exact_residual()
    assert exact < bound / 8
    _, plain = escalation(monkeypatch, bound * 1.01)
    assert plain.rebuilt == {}
    model, measured = escalation(monkeypatch, bound * 0.9)
    assert measured.rebuilt == {"exact residuals": 1}
    assert model.account_.spent == pytest.approx(exact, rel=1e-6)
    model, polished = escalation(monkeypatch, exact * 0.9)
    assert polished.rebuilt["exact residuals"] == 1
    assert polished.rebuilt["polishes"] >= 1
    assert "retrains" not in polished.rebuilt
    assert model.account_.polishes == polished.rebuilt["polishes"]
    model, solved = escalation(monkeypatch, exact * 0.9, most_polishes=0)
    assert solved.rebuilt == {"exact residuals": 1, "polishes": 1}
    assert model.exact_residual() <= exact * 0.9
    monkeypatch.setattr(_newton, "_MOST_SOLVING", 0)
    model, retrained = escalation(monkeypatch, exact * 0.9, most_polishes=0)
    assert retrained.rebuilt["retrains"] == 1
    assert retrained.work == 1.0
    assert model.account_.spent == pytest.approx(model.exact_residual(), abs=1e-11)


def ready(way: str, patch: pytest.MonkeyPatch) -> tuple[Any, dict[str, Any]]:
    """A model, and options of a request that removes rows this way."""
    if way == "by products":
        form_no_matrix(patch, above=2)
    X, y = make_rows(n=60)
    return estimator(sigma=0.5).fit(X, y), {"batch_size": 1} if way == "in batches" else {}


@pytest.mark.parametrize("way", ["at once", "in batches", "by products"])
def test_the_limit_decides(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def removed(limit: float) -> Any:
        model, options = ready(way, monkeypatch)
        with monkeypatch.context() as patch:
            fix_limit(patch, limit)
            return model, model.forget([3, 4], **options).rebuilt

    free, nothing = removed(1e9)
    bound, exact = free.account_.spent, free.exact_residual()
    assert nothing == {}
    # By products, a step is the more exact the lower the limit is, and the bound so close to the
    # truth that what is measured is polished, too.
    if way == "by products":
        bound = removed(bound)[0].account_.spent
    model, measured = removed(0.9 * bound)
    assert measured.keys() - {"polishes"} == {"exact residuals"}
    assert ("polishes" in measured) == (way == "by products")
    assert model.account_.spent == pytest.approx(model.exact_residual(), rel=1e-6)
    model, polished = removed(min(3.0 * exact, 0.5 * bound))
    assert polished["exact residuals"] == 1
    assert polished["polishes"] >= 1
    assert model.exact_residual() <= 0.1 * exact


def test_what_a_request_does_is_the_same_whatever_the_noise() -> None:
    X, y = make_rows(n=60)
    models = [estimator(sigma=0.05, noise_seed=seed).fit(X, y) for seed in (1, 2)]
    for person in range(20):
        receipts = [model.forget([person]) for model in models]
        assert receipts[0].rebuilt == receipts[1].rebuilt
        assert models[0].account_ == models[1].account_
    assert models[0].account_.exact > 0
    assert not np.array_equal(models[0].coef_, models[1].coef_)


def test_without_noise_every_removal_is_measured() -> None:
    X, y = make_rows(n=60)
    model = estimator(sigma=0.0).fit(X, y)
    assert model.forget([1]).rebuilt["exact residuals"] == 1


def test_the_last_row_of_a_class_leaves_by_a_retrain() -> None:
    X, y = make_rows("ovr", 30)
    y[:-1] = np.minimum(y[:-1], 1)
    y[-1] = 2
    model = estimator("ovr").fit(X, y)
    receipt = model.forget([29])
    assert receipt.rebuilt == {"retrains": 1}
    assert model.account_.retrains == 1
    np.testing.assert_array_equal(model.classes_, [0, 1])
    case = case_of(model, "logistic", X[:29], y[:29])
    assert ref.residual(case, weights_of(model)) <= model.account_.spent + 1e-11


def test_a_bound_that_is_no_number_covers_nothing() -> None:
    for account in (
        Account(0.0, 1.0).add_bound(np.nan),
        Account(np.nan, 1.0),
        Account(0.0, np.nan),
    ):
        assert not account.is_covered
    assert Account(np.nan, 1.0).add_bound(1.0).record_measurement(0.5).is_covered


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e9])
def test_an_account_from_a_file_that_covers_nothing_certifies_nothing(
    number: float, tmp_path: Path
) -> None:
    """Files set attributes as they are: what a new account would refuse is read."""
    X, y = make_rows()
    model = estimator(noise_seed=None).fit(X, y)
    assert model.guarantee_.kind == "certified"
    object.__setattr__(model.account_, "spent", number)
    path = tmp_path / "model.letheon"
    save(model, path)
    claim = load(path).guarantee_
    assert (claim.kind, claim.epsilon, claim.spent) == ("empirical", None, None)


def test_account_in_words_and_epsilon() -> None:
    account = Account(1.0, 4.0)
    assert not account.add_bound(3.5).is_covered
    assert account.add_bound(2.0).add_bound(0.5).spent == 3.5
    assert account.record_measurement(0.1).count_since(account) == {"exact residuals": 1}
    assert account.record_measurement(3.0).record_polish(0.1).count_since(account) == {
        "exact residuals": 1,
        "polishes": 1,
    }
    assert account.record_retrain(0.2, 5.0) == Account(0.2, 5.0, retrains=1)
    assert ObjectiveNoise(2.0, 1.0, 0.0).compute_epsilon(1.0, 3.0, 5) == 0.5
    assert Mechanism().compute_epsilon(1.0, 3.0, 5) == np.inf
    assert residual_limit(2.0, 0.5, 0.0) == 1.0
    assert residual_limit(2.0, 0.5, 0.01) == 2 * gaussian_mu(0.5, 0.01)


def test_epsilon_so_far_is_below_the_claim_and_grows() -> None:
    X, y = make_rows(n=100)
    model = estimator(sigma=5.0, noise_seed=None).fit(X, y)
    so_far = [model.epsilon_]
    for person in range(5):
        model.forget([person])
        so_far.append(model.epsilon_)
    assert so_far[0] < so_far[-1] <= model.epsilon
    claim = model.guarantee_
    assert (claim.kind, claim.epsilon, claim.delta) == ("certified", 1.0, 1e-4)
    assert claim.spent is not None
    assert claim.budget is not None
    assert claim.spent <= claim.budget
    assert "regulariser-per-sample" in claim.assumptions


@pytest.mark.parametrize("settings", [{"sigma": 0.0}, {"noise_seed": 3}])
def test_without_secret_noise_nothing_is_certified(settings: dict[str, Any]) -> None:
    X, y = make_rows()
    model = estimator(**({"noise_seed": None} | settings)).fit(X, y)
    for claim in (model.guarantee_, model.forget([1]).guarantee):
        assert (claim.kind, claim.epsilon, claim.delta) == ("empirical", None, None)


def test_without_noise_the_parameters_stay_near_the_optimum() -> None:
    X, y = make_rows(n=120)
    model = estimator(sigma=0.0).fit(X, y)
    for person in range(80):
        model.forget([person])
        if person % 8:
            continue
        case = case_of(model, "logistic", X[person + 1 :], y[person + 1 :])
        distance = np.linalg.norm(weights_of(model) - ref.retrain(case))
        assert distance <= 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["sparse", "single", "products", "sparse products"])
def test_other_forms_of_rows_do_as_well(
    kind: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = make_rows(kind, 50, 5)
    X = np.where(abs(X) > 0.4, X, 0.0).astype(np.float32).astype(np.float64)
    plain = estimator(kind, sigma=2.0).fit(X, y)
    if "products" in form:
        form_no_matrix(monkeypatch, above=2)
        monkeypatch.setattr(Curvature, "from_problem", None)
    given_rows: Any = sp.csr_array(X) if "sparse" in form else X
    given_rows = X.astype(np.float32) if form == "single" else given_rows
    model = estimator(kind, sigma=2.0).fit(given_rows, y)
    np.testing.assert_allclose(model.coef_, plain.coef_, rtol=1e-6, atol=1e-8)
    for gone in ([2], [3, 4, 5], [9]):
        model.forget(gone)
    rest = np.setdiff1d(np.arange(50), [2, 3, 4, 5, 9])
    case = case_of(model, kind, X[rest], y[rest])
    residual = ref.residual(case, weights_of(model))
    assert residual <= model.account_.spent * (1 + 1e-9) + 1e-11
    assert model.account_.is_covered
    distance = np.linalg.norm(weights_of(model) - ref.retrain(case))
    assert distance <= residual / case.ridge + 1e-10


def test_batches_on_wide_rows_form_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = make_rows("logistic", 50, 5)
    form_no_matrix(monkeypatch, above=2)
    monkeypatch.setattr(Curvature, "from_problem", None)
    model = estimator(sigma=2.0).fit(X, y)
    model.forget([1, 2, 3, 4], batch_size=2)
    case = case_of(model, "logistic", np.delete(X, [1, 2, 3, 4], 0), np.delete(y, [1, 2, 3, 4]))
    assert ref.residual(case, weights_of(model)) <= model.account_.spent * (1 + 1e-9) + 1e-11


def test_batches_take_the_hessian_where_they_stand() -> None:
    case = table_of_section_1()
    model = estimator(l2=1e-2, fit_intercept=False, **AMPLE).fit(case.X, case.y)
    case = replace(case, tilt=tilt_of(model))
    W = weights_of(model)
    model.forget(list(range(20)), batch_size=8)
    now, gone = case, [np.arange(8)] * 2 + [np.arange(4)]
    for batch in gone:
        step = ref.solve(ref.hessian(now.without(batch), W), ref.removed_gradient(now, W, batch))
        W, now = W + step, now.without(batch)
    left = ref.residual(now, W)
    assert np.linalg.norm(weights_of(model) - W) <= left / now.ridge
    assert np.linalg.norm(weights_of(model) - ref.retrain(now)) < 2e-3


def test_batch_size_of_the_estimator_and_of_the_request() -> None:
    X, y = make_rows(n=80)
    settings: dict[str, Any] = {"sigma": 20.0}
    fitted, requested, plain = (estimator(**settings) for _ in range(3))
    fitted.set_params(batch_size=2).fit(X, y).forget([1, 2, 3])
    requested.fit(X, y).forget([1, 2, 3], batch_size=2)
    plain.fit(X, y).forget([1, 2, 3])
    np.testing.assert_array_equal(fitted.coef_, requested.coef_)
    assert (fitted.coef_ != plain.coef_).any()
    again = estimator(**settings, batch_size=2).fit(X, y)
    again.forget([1, 2, 3], batch_size=None)
    np.testing.assert_array_equal(again.coef_, plain.coef_)


@pytest.mark.parametrize("kind", ["logistic", "softmax", "huber"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_most_rows_leave_one_by_one(kind: str, form: Any) -> None:
    """Wiping, compaction, drift, stale Hessians and a shrinking regulariser, all in one run."""
    X, y = make_rows(kind, 150, 4)
    order = np.random.default_rng(5).permutation(150)
    model = estimator(kind, sigma=1.0, l2=0.02).fit(form(X), y)
    for person in order[:90]:
        model.forget([int(person)])
    rest = np.sort(order[90:])
    case = case_of(model, kind, X[rest], y[rest])
    np.testing.assert_array_equal(model.ids_, rest)
    residual = ref.residual(case, weights_of(model))
    assert residual <= model.account_.spent + 1e-10
    assert model.account_.retrains == 0
    distance = np.linalg.norm(weights_of(model) - ref.retrain(case))
    assert distance <= model.account_.limit / case.ridge
    stored = model.rows_.X[model.rows_.alive]
    stored = stored.toarray() if sp.issparse(stored) else stored
    np.testing.assert_array_equal(stored, case.X)


def test_one_by_one_and_at_once_end_close_together() -> None:
    X, y = make_rows(n=200)
    one_by_one, all_at_once = (estimator(sigma=1.0).fit(X, y) for _ in range(2))
    for person in range(30):
        one_by_one.forget([person])
    all_at_once.forget(list(range(30)))
    budget = 2 * one_by_one.account_.limit / (0.05 * 170)
    assert np.linalg.norm(weights_of(one_by_one) - weights_of(all_at_once)) <= budget


def test_rows_that_say_nothing() -> None:
    y = np.arange(20) % 2
    model = estimator(fit_intercept=False).fit(np.zeros((20, 2)), y)
    model.forget([1])
    case = ref.LinearCase(np.zeros((19, 2)), np.delete(y, 1), "logistic", 0.05, tilt=tilt_of(model))
    assert ref.residual(case, weights_of(model)) <= model.account_.spent + 1e-12


def test_a_person_with_many_rows_leaves_whole() -> None:
    X, y = make_rows(n=40)
    ids = np.array(["a", "b", "c", "d"]).repeat(10)
    model = estimator(sigma=5.0).fit(X, y, ids=ids)
    assert model.forget(["b", "b"]).n_rows == 10
    case = case_of(model, "logistic", np.delete(X, range(10, 20), 0), np.delete(y, range(10, 20)))
    assert ref.residual(case, weights_of(model)) <= model.account_.spent + 1e-11


def test_settle_is_a_fit_on_the_rows_held() -> None:
    X, y = make_rows(n=80)
    model = estimator(sigma=20.0).fit(X, y)
    for person in range(10):
        model.forget([person])
    assert model.account_.spent > 1e-3
    model.settle()
    fresh = estimator(sigma=20.0).fit(X[10:], y[10:], ids=range(10, 80))
    assert model.account_ == fresh.account_
    assert (model.n_iter_, model.training_flops_) == (fresh.n_iter_, fresh.training_flops_)
    np.testing.assert_array_equal(weights_of(model), weights_of(fresh))
    np.testing.assert_allclose(model.cache_.content.point, weights_of(model), atol=1e-6)
    case = case_of(model, "logistic", X[10:], y[10:])
    np.testing.assert_allclose(weights_of(model), ref.retrain(case), atol=1e-9)


def file_of(model: Any, folder: Path) -> bytes:
    save(model, folder / "model.letheon")
    return (folder / "model.letheon").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delta", [1e-4, 0.0])
def test_files_keep_account_and_noise_byte_for_byte(
    kind: str, delta: float, tmp_path: Path
) -> None:
    X, y = make_rows(kind)
    model = estimator(kind, noise_seed=None, delta=delta, sigma=2.0).fit(X, y)
    model.forget([4, 5])
    file = file_of(model, tmp_path)
    for twin in (
        load(tmp_path / "model.letheon"),
        pickle.loads(pickle.dumps(model)),
        copy.copy(model),
        copy.deepcopy(model),
    ):
        assert twin.account_ == model.account_
        assert weights_of(twin).tobytes() == weights_of(model).tobytes()
        assert twin.digest() == model.digest()
        assert file_of(twin, tmp_path) == file
        twin.forget([7])
        case = case_of(twin, kind, np.delete(X, [4, 5, 7], 0), np.delete(y, [4, 5, 7]))
        assert ref.residual(case, weights_of(twin)) <= twin.account_.spent + 1e-11
    assert file_of(model, tmp_path) == file


def test_a_copy_and_its_original_forget_apart() -> None:
    X, y = make_rows()
    model = estimator().fit(X, y)
    twin = copy.copy(model)
    before, rows = model.coef_.copy(), model.rows_.X.copy()
    twin.forget([0, 1, 2, 3, 4, 5, 6, 7])
    np.testing.assert_array_equal(model.coef_, before)
    np.testing.assert_array_equal(model.rows_.X, rows)
    assert (model.n_rows_, twin.n_rows_) == (60, 52)
    model.forget([0])
    assert model.exact_residual() <= model.account_.spent + 1e-12


def noise_of(**settings: Any) -> ref.Floats:
    """Return what was added to the released parameters of a small model."""
    X, y = make_rows(n=20, p=2)
    model = estimator(sigma=3.0, **settings).fit(X, y)
    return np.asarray(model.model_.weights - weights_of(model))


def test_noise_has_the_law_that_was_asked_for() -> None:
    assert np.std([noise_of(noise_seed=k) for k in range(150)]) == pytest.approx(3.0, rel=0.15)
    pure = np.abs([noise_of(noise_seed=k, delta=0.0) for k in range(150)])
    assert np.mean(pure) == pytest.approx(3.0, rel=0.15)
    assert (noise_of(noise_seed=None) != noise_of(noise_seed=None)).all()


def test_every_release_has_noise_of_its_own() -> None:
    X, y = make_rows(n=40)
    model = estimator(sigma=0.5).fit(X, y)
    seen = [model.model_.weights - weights_of(model)]
    for person in range(3):
        model.forget([person])
        seen.append(model.model_.weights - weights_of(model))
    for one_by_one, other in itertools.combinations(seen, 2):
        assert (one_by_one != other).all()


def test_noise_in_the_objective_has_the_published_law_and_proves_nothing() -> None:
    X, y = make_rows(n=20, p=2)
    settings: dict[str, Any] = {"sigma": 3.0, "mechanism": "objective"}
    gaussian = [tilt_of(estimator(**settings, noise_seed=k).fit(X, y)) for k in range(150)]
    assert np.std(gaussian) == pytest.approx(3.0, rel=0.15)
    models = (estimator(**settings, delta=0.0, noise_seed=k).fit(X, y) for k in range(150))
    lengths = [np.linalg.norm(tilt_of(model)) for model in models]
    # The radius of exp(-|b| / sigma) in three dimensions has the mean 3 sigma.
    assert np.mean(lengths) == pytest.approx(9.0, rel=0.15)
    model = estimator(**settings, noise_seed=None).fit(X, y)
    np.testing.assert_array_equal(model.model_.weights, weights_of(model))
    assert ref.residual(case_of(model, "logistic", X, y), weights_of(model)) < 1e-9
    assert model.forget([1]).guarantee.kind == "empirical"


def test_search_and_pipelines() -> None:
    X, y = make_rows(n=90)
    search = GridSearchCV(estimator(), {"l2": [0.01, 0.1], "reg": ["per_sample", "total"]}, cv=3)
    best = search.fit(X, y).best_estimator_
    best.forget([0])
    assert best.n_rows_ == 89
    pipe = make_pipeline(StandardScaler(), estimator("ovr")).fit(X, np.arange(90) % 3)
    assert pipe.predict_proba(X).shape == (90, 3)
    np.testing.assert_allclose(pipe.predict_proba(X).sum(axis=1), 1.0)


@pytest.mark.parametrize("rows", ["clip", "normalize"])
def test_rows_are_scaled_to_the_declared_norm(rows: str) -> None:
    X, y = make_rows(n=40)
    model = estimator(rows=rows, row_norm=1.5, sigma=5.0).fit(X * 3, y)
    full = np.column_stack([X * 3, np.ones(40)])
    norms = np.linalg.norm(full, axis=1, keepdims=True)
    scales = 1.5 / norms if rows == "normalize" else np.minimum(1.0, 1.5 / norms)
    np.testing.assert_allclose(model.rows_.X, full * scales, rtol=1e-12)
    expected = (full * scales) @ model.model_.weights
    np.testing.assert_allclose(model.decision_function(X * 3), expected[:, 0], rtol=1e-9)
    model.forget([1])
    case = ref.LinearCase(full * scales, y, "logistic", 0.05, tilt=tilt_of(model)).without([1])
    assert ref.residual(case, weights_of(model)) <= model.account_.spent + 1e-11


@pytest.mark.parametrize("batch_size", [None, 2])
def test_the_limit_follows_the_ridge_of_the_rows_left(batch_size: int | None) -> None:
    X, y = make_rows(n=40)
    model = estimator(sigma=0.5, noise_seed=None).fit(X, y)
    model.forget([0, 1, 2, 3], batch_size=batch_size)
    hidden = ReleaseGrid.of_sigma(0.5).max_hidden_distance(
        model.epsilon, model.delta, model.weights_.size
    )
    assert model.account_.limit == pytest.approx(0.875 * model.l2 * 36 * hidden, rel=1e-12)
