"""Models without rows: recognised rows leave by the stored Hessian, all others are refused."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from letheon import load, save
from letheon.exceptions import BudgetSpentError, CannotForgetError, EmptyModelError, UnknownIdError
from letheon.linear._newton import fingerprint_rows
from tests.linear import reference as ref
from tests.linear.people import (
    KINDS,
    case_of,
    estimator,
    examples,
    form_no_matrix,
    make_rows,
    tilt_of,
    weights_of,
)

AMPLE: dict[str, Any] = {"sigma": 1e4, "epsilon": 1e8, "rows": "refuse", "row_norm": 9.0}


def data_free(kind: str, X: Any, y: Any, **settings: Any) -> Any:
    return estimator(kind, **(AMPLE | {"data_free": True} | settings)).fit(X, y)


@pytest.mark.parametrize("kind", KINDS)
def test_same_steps_as_a_model_with_rows(kind: str) -> None:
    X, y = make_rows(kind)
    free, stored = data_free(kind, X, y), estimator(kind, **AMPLE).fit(X, y)
    np.testing.assert_array_equal(free.coef_, stored.coef_)
    for gone in ([3], [8, 1, 30], [4]):
        free.forget(gone, X=X[gone], y=y[gone])
        stored.forget(gone)
        # The stored Hessian is rounded to a grid.
        np.testing.assert_allclose(free.coef_, stored.coef_, rtol=1e-7, atol=1e-9)
        assert stored.account_.spent <= free.account_.spent <= stored.account_.spent * 1.01 + 1e-6
    assert free.n_rows_ == 55


@examples(60)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**20),
    actions=st.lists(st.sampled_from(["one", "two", "pickle", "copy"]), min_size=1, max_size=10),
)
def test_spent_is_never_below_the_residual(kind: str, seed: int, actions: list[str]) -> None:
    X, y = make_rows(kind, 40, 3, seed)
    model = data_free(kind, X, y, rows="clip", row_norm=3.0, tol=1e-5)
    full = np.column_stack([X, np.ones(40)])
    full *= np.minimum(1.0, 3.0 / np.linalg.norm(full, axis=1, keepdims=True))
    remaining = np.arange(40)
    for number, action in enumerate(actions):
        if action == "pickle":
            model = pickle.loads(pickle.dumps(model))
        elif action == "copy":
            model = copy.copy(model)
        else:
            rng = np.random.default_rng([seed, number])
            gone = rng.choice(remaining, 1 if action == "one" else 2, replace=False)
            try:
                model.forget(gone.tolist(), X=X[gone], y=y[gone])
            except BudgetSpentError:
                continue
            remaining = np.setdiff1d(remaining, gone)
        n_classes = max(weights_of(model).shape[1], 2)
        case = ref.LinearCase(full, y, kind, 0.05, tilt=tilt_of(model), n_classes=n_classes)
        case = case.only(remaining)
        residual = ref.residual(case, weights_of(model))
        assert residual <= model.account_.spent + 1e-11 * (1 + abs(weights_of(model)).max())


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("rows", ["clip", "normalize", "refuse"])
def test_rows_are_recognised_in_the_form_they_had(form: Any, dtype: Any, rows: str) -> None:
    X, y = make_rows("logistic", 50, 30)
    X = form(X.astype(dtype))
    model = data_free("logistic", X, y, rows=rows, row_norm=12.0)
    for person in range(20):
        model.forget([person], X=X[[person]], y=y[[person]])
    model.forget([30, 21], X=X[[21, 30]], y=y[[21, 30]])
    assert model.n_rows_ == 28


def test_text_labels_and_ids() -> None:
    X, y = make_rows("ovr")
    names = np.array(["ash", "elm", "oak"])[y]
    ids = np.array([f"p{k // 2}" for k in range(60)])
    model = estimator("ovr", **AMPLE, data_free=True).fit(X, names, ids=ids)
    assert model.forget(["p3"], X=X[6:8], y=names[6:8]).n_rows == 2


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, r"X and y are required, .* pass the 1 row"),
    ({"X": "own"}, "X and y are required"),
    ({"X": "other", "y": "own"}, "differ from the 1 row"),
    ({"X": "own", "y": "other"}, "differ from the 1 row"),
    ({"X": "near", "y": "own"}, "Every number and label must match"),
    ({"X": "twice", "y": "twice"}, "the 2 row.s. in X and y differ from the 1 row"),
    ({"X": "narrow", "y": "own"}, "features"),
    ({"X": "nan", "y": "own"}, "NaN"),
    ({"X": "long", "y": "own"}, "norm above row_norm"),
    ({"X": "own", "y": "unknown"}, "labels that are not in classes_"),
    ({"X": "own", "y": "own", "batch_size": 1}, "batch_size"),
]


@pytest.mark.parametrize(("given_rows", "text"), WRONG)
def test_wrong_rows_change_nothing(given_rows: dict[str, Any], text: str, tmp_path: Path) -> None:
    X, y = make_rows()
    model = data_free("logistic", X, y, noise_seed=None)
    own = X[[5]]
    choices: dict[str, Any] = {
        "own": (own, y[[5]]),
        "other": (X[[6]], 1 - y[[5]]),
        "near": (np.nextafter(own, 9), None),
        "twice": (X[[5, 5]], y[[5, 5]]),
        "narrow": (own[:, :3], None),
        "nan": (own * np.nan, None),
        "long": (own * 100, None),
        "unknown": (None, np.array([7])),
    }
    options = {
        name: choices[value][name == "y"] if name in "Xy" else value
        for name, value in given_rows.items()
    }
    save(model, tmp_path / "a.letheon")
    with pytest.raises(ValueError, match=text):
        model.forget([5], **options)
    save(model, tmp_path / "b.letheon")
    assert (tmp_path / "a.letheon").read_bytes() == (tmp_path / "b.letheon").read_bytes()


def test_what_needs_rows_says_so() -> None:
    X, y = make_rows()
    model = data_free("logistic", X, y)
    for action in (model.exact_residual, model.settle):
        with pytest.raises(
            CannotForgetError,
            match="needs the training rows, but this model was fitted with data_free=True",
        ):
            action()
    with pytest.raises(UnknownIdError):
        model.forget([77], X=X[:1], y=y[:1])
    digest = model.digest()
    with pytest.raises(EmptyModelError, match="only one class would remain"):
        model.forget(np.flatnonzero(y == 0).tolist(), X=X[y == 0], y=y[y == 0])
    assert model.digest() == digest


def test_an_exhausted_budget_cannot_be_repaired() -> None:
    X, y = make_rows()
    model = data_free("logistic", X, y, epsilon=0.01, sigma=0.01)
    digest = model.digest()
    with pytest.raises(BudgetSpentError, match=r"above the .*Fit again on the remaining rows"):
        model.forget([1], X=X[[1]], y=y[[1]])
    assert model.digest() == digest


def test_the_last_row_of_a_class_cannot_leave() -> None:
    X, y = make_rows("ovr", 30)
    y[:-1], y[-1] = np.minimum(y[:-1], 1), 2
    model = data_free("ovr", X, y)
    digest = model.digest()
    with pytest.raises(BudgetSpentError, match="last row of a class"):
        model.forget([29], X=X[[29]], y=y[[29]])
    assert model.digest() == digest


def test_too_many_columns_for_a_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = make_rows()
    form_no_matrix(monkeypatch, above=3)
    with pytest.raises(ValueError, match="5 columns are too many"):
        data_free("logistic", X, y)


@pytest.mark.parametrize("kind", KINDS)
def test_files_keep_hessian_account_and_marks(kind: str, tmp_path: Path) -> None:
    X, y = make_rows(kind)
    model = data_free(kind, X, y)
    model.forget([3], X=X[[3]], y=y[[3]])
    save(model, tmp_path / "a.letheon")
    twin = load(tmp_path / "a.letheon")
    save(twin, tmp_path / "b.letheon")
    assert (tmp_path / "a.letheon").read_bytes() == (tmp_path / "b.letheon").read_bytes()
    assert twin.account_ == model.account_
    for candidate in (twin, model):
        candidate.forget([9], X=X[[9]], y=y[[9]])
    # A loaded inverse is fresh; steps are the same up to what both accounts allow for.
    ridge = 0.05 * model.n_rows_
    apart = np.linalg.norm(weights_of(twin) - weights_of(model))
    assert apart <= (twin.account_.spent + model.account_.spent) / ridge
    assert twin.account_.spent <= 1.2 * model.account_.spent + 1e-9


def test_a_copy_has_a_hessian_of_its_own() -> None:
    X, y = make_rows()
    model = data_free("logistic", X, y)
    twin = copy.copy(model)
    before = model.cache_.content.blocks[0].hessian.copy()
    twin.forget([1], X=X[[1]], y=y[[1]])
    np.testing.assert_array_equal(model.cache_.content.blocks[0].hessian, before)
    assert (model.n_rows_, twin.n_rows_) == (60, 59)


def test_a_later_fit_with_rows_leaves_no_marks_behind() -> None:
    X, y = make_rows()
    model = data_free("logistic", X, y)
    model.set_params(data_free=False).fit(X, y)
    model.forget([1])
    assert model.rows_.X.shape[1] == 5
    assert model.fingerprint_key_ is None
    assert "fingerprint" not in model.rows_.extra


def test_fingerprints_depend_on_everything_and_the_key() -> None:
    rows, y = np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]]), np.array([0, 1, 0])
    key, other = "00" * 32, "01" * 32
    marks = fingerprint_rows(rows, y, key)
    assert len(set(marks.tolist())) == 3
    np.testing.assert_array_equal(marks, fingerprint_rows(sp.csr_array(rows), y, key))
    assert not set(marks.tolist()) & set(fingerprint_rows(rows, y, other).tolist())
    X, labels = make_rows()
    keys = {data_free("logistic", X, labels).fingerprint_key_ for _ in range(2)}
    assert len(keys) == 2


def test_long_sequences_without_rows() -> None:
    X, y = make_rows("logistic", 120)
    model = data_free("logistic", X, y)
    for person in range(70):
        model.forget([person], X=X[[person]], y=y[[person]])
        if person == 40:
            model = pickle.loads(pickle.dumps(model))
    case = case_of(model, "logistic", X[70:], y[70:])
    assert ref.residual(case, weights_of(model)) <= model.account_.spent
    distance = np.linalg.norm(weights_of(model) - ref.retrain(case))
    assert distance < 0.2 * np.linalg.norm(ref.retrain(case))
