"""StandardScaler and RobustScaler: results, rounding, changes, planted bugs."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import preprocessing as sk
from sklearn.base import clone

from letheon.delta import Delta, RowSource, take_block
from letheon.preprocessing import RobustScaler, SimpleImputer, StandardScaler
from letheon.preprocessing import _quantiles as quantiles
from letheon.preprocessing import _scale as scale
from letheon.sums import round_location_scale as round_columns
from tests.preprocessing.plans import check_plan, prepare_removal
from tests.preprocessing.tables import numbers, requests, run_requests

SCALERS = [
    StandardScaler(),
    StandardScaler(with_mean=False),
    StandardScaler(with_std=False),
    RobustScaler(),
    RobustScaler(quantile_range=(5.0, 95.0), with_scaling=False),
]


@pytest.mark.parametrize("estimator", SCALERS, ids=repr)
@given(requests())
def test_after_requests_it_is_a_fresh_fit(estimator: Any, drawn: Any) -> None:
    seed, steps = drawn
    ids = np.random.default_rng(seed).integers(0, 24, 40).tolist()
    run_requests(estimator, numbers(seed, 40), None, ids, steps)


@pytest.mark.parametrize("estimator", [RobustScaler(), SimpleImputer(strategy="median")], ids=repr)
@pytest.mark.parametrize("n_sampled", [3, 10])
@given(requests())
def test_small_samples(estimator: Any, n_sampled: int, drawn: Any) -> None:
    """Most people are not sampled: grids stay, and few sampled values are replaced by all."""
    seed, steps = drawn
    ids = np.random.default_rng(seed).integers(0, 24, 40).tolist()
    with patch.multiple(quantiles, _N_SAMPLED=n_sampled, _FEW_VALUES=2):
        run_requests(estimator, numbers(seed, 40), None, ids, steps)


@given(requests())
def test_sparse_tables(drawn: Any) -> None:
    seed, steps = drawn
    X = numbers(seed, 40)[:, [0, 3, 4, 6]]
    X[X < 0] = 0
    ids = np.random.default_rng(seed).integers(0, 24, 40).tolist()
    model = run_requests(StandardScaler(with_mean=False), sp.csr_array(X), None, ids, steps)
    assert_array_equal(model.transform(sp.csr_array(X)).toarray(), model.transform(X))
    assert_allclose(model.inverse_transform(model.transform(sp.csr_array(X))).toarray(), X)


@given(st.integers(0, 2**31))
def test_standard_scaler_is_near_scikit_learn(seed: int) -> None:
    X = numbers(seed, 60)[:, [0, 1, 3, 5, 6]]
    model, reference = StandardScaler(random_state=seed).fit(X), sk.StandardScaler().fit(X)
    assert model.mean_ is not None
    varies = np.arange(5) != 2
    ratio = model.scale_ / reference.scale_
    assert ((ratio >= 0.499) & (ratio <= 2.001))[varies].all()
    assert (abs(model.mean_ - reference.mean_) <= model.scale_ * 1.001)[varies].all()
    assert (model.mean_[2], model.scale_[2]) == (0.1, 1.0)
    assert_array_equal(np.frexp(model.scale_)[0], 0.5)
    assert_allclose(model.inverse_transform(model.transform(X)), X, rtol=1e-12)


@given(st.integers(0, 2**31))
def test_robust_scaler_is_near_scikit_learn(seed: int) -> None:
    X = numbers(seed, 200)[:, [0, 1, 3, 4, 5, 6]]
    model, reference = RobustScaler(random_state=seed).fit(X), sk.RobustScaler().fit(X)
    assert model.center_ is not None
    varies = np.arange(6) != 2
    ratio = model.scale_ / reference.scale_
    assert ((ratio > 0.45) & (ratio < 2.1))[varies].all()
    assert (abs(model.center_ - reference.center_) <= model.scale_ * 1.2)[varies].all()
    assert (model.center_[2], model.scale_[2]) == (0.1, 1.0)


def test_extreme_columns() -> None:
    X = np.array([[1e300, 1.7e9, 0.0], [-1e300, 1.7e9 + 1, 0.0], [0.0, 1.7e9 + 2, np.nan]])
    for model in (StandardScaler(random_state=3).fit(X), RobustScaler(random_state=3).fit(X)):
        scaled = model.transform(X)
        assert np.nanmax(abs(scaled)) <= 4
        assert scaled[2, 1] - scaled[0, 1] in (1.0, 2.0, 4.0)
        assert scaled[0, 2] == 0
        assert np.isnan(scaled[2, 2])


@pytest.mark.parametrize("estimator", SCALERS, ids=repr)
@given(st.integers(0, 2**31))
def test_plans_report_what_changes(estimator: Any, seed: int) -> None:
    X = numbers(seed, 30)
    gone = np.random.default_rng(seed).choice(30, 3, replace=False).tolist()
    check_plan(estimator, X, None, gone)


@pytest.mark.parametrize("estimator", [StandardScaler(), RobustScaler()], ids=repr)
@given(st.integers(0, 2**31))
def test_changed_columns_and_layouts(estimator: Any, seed: int) -> None:
    """A step before this one changes a column, drops one and adds one."""
    X = numbers(seed, 30)[:, :4]
    new = np.column_stack([X[:, 1], numbers(seed + 1, 30)[:, 0], X[:, 3], X[:, 0] * 3])
    layout, columns = np.array([1, -1, 3, 0]), (3,)
    model = clone(estimator).set_params(random_state=5).fit(X)
    fresh_rows = type(model)(random_state=5).fit(new).rows_
    where = np.array([2, 7])
    stay = np.setdiff1d(np.arange(30), where)
    delta = Delta(
        removed=take_block(model.rows_, where),
        layout=layout,
        columns=columns,
        before=RowSource(model.rows_, where),
        source=RowSource(fresh_rows, where),
    )
    plan = model._prepare_delta(delta)
    fresh = type(model)(random_state=5).fit(new[stay])
    assert_array_equal(plan.published.centre, fresh.published_.centre)
    assert_array_equal(plan.published.scale, fresh.published_.scale)
    before = model.transform(X[stay])
    plan.apply()
    model.published_ = plan.published
    assert model.sums_._to_state().keys() == fresh.sums_._to_state().keys()
    after = fresh.transform(new[stay])
    same = [j for j in range(4) if j not in plan.columns and layout[j] >= 0]
    assert_array_equal(after[:, same], before[:, layout[same]])


@pytest.mark.parametrize(("estimator", "limit"), [(StandardScaler(), 2.5), (RobustScaler(), 4.0)])
def test_frequency_of_changes(estimator: Any, limit: float) -> None:
    """The dither is drawn again for each removal: changes per column are about 1.5 / n."""
    n_rows, n_columns, n_seeds = 400, 30, 60
    X = np.random.default_rng(3).normal(size=(n_rows, n_columns))
    changes = 0
    for seed in range(n_seeds):
        model = clone(estimator).set_params(random_state=seed).fit(X)
        for slot in range(3):
            changes += len(prepare_removal(model, [slot * 7 + seed]).columns)
    rate = changes / (n_seeds * 3 * n_columns) * n_rows
    assert 0.2 < rate < limit


def test_a_dither_without_a_key_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the dither is the same for every column and seed."""
    X = np.random.default_rng(0).normal(size=(50, 200))

    def rounded(seed: int) -> Any:
        return StandardScaler(random_state=seed).fit(X).published_.centre

    assert (rounded(0) != rounded(1)).any()
    monkeypatch.setattr(scale, "round_location_scale", lambda sums, _: round_columns(sums, 0))
    assert (rounded(0) == rounded(1)).all()


def test_hysteresis_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: a published value stays while it is close to the new one."""
    X = np.random.default_rng(0).normal(size=(40, 50))
    original = StandardScaler._plan

    def keep(self: Any, delta: Any, published: Any, apply: Any, work: float) -> Any:
        return original(self, delta, self.published_, apply, work)

    monkeypatch.setattr(StandardScaler, "_plan", keep)
    model = StandardScaler(random_state=1).fit(X)
    model.forget(list(range(20)))
    fresh = StandardScaler(random_state=1).fit(X[20:], ids=range(20, 40))
    assert model.digest() != fresh.digest()


def test_errors() -> None:
    with pytest.raises(ValueError, match="Cannot center sparse matrices"):
        StandardScaler().fit(sp.csr_array(np.eye(3)))
    with pytest.raises(ValueError, match="contains infinity"):
        StandardScaler().fit([[np.inf], [1.0]])
    with pytest.raises(ValueError, match="Invalid quantile range"):
        RobustScaler(quantile_range=(75.0, 25.0)).fit([[1.0], [2.0]])
    with pytest.raises(TypeError, match="dense data is required"):
        RobustScaler(with_centering=False).fit(sp.csr_array(np.eye(3)))


def test_a_column_that_is_almost_always_missing() -> None:
    """Few sampled people have a value: all values of the column decide its grid."""
    rng = np.random.default_rng(1)
    X = np.full((6000, 2), np.nan)
    X[:, 0] = rng.normal(size=6000)
    X[::600, 1] = 1.7e9 + np.arange(10)
    model = RobustScaler(random_state=2).fit(X)
    assert model.sums_.border < 2**64
    assert len(model.sums_.samples[1]) == 10
    assert model.center_ is not None
    assert abs(model.center_[1] - (1.7e9 + 4.5)) <= model.scale_[1] <= 10
    model.forget([0, 1, 600])
    stay = np.setdiff1d(np.arange(6000), [0, 1, 600])
    assert model.digest() == RobustScaler(random_state=2).fit(X[stay], ids=stay).digest()
