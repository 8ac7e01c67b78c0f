"""What is left of a forgotten row: tried with the saved file, the memory and the other rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import root
from scipy.special import expit

from letheon import load, save
from letheon import state as canonical
from letheon.removal import Cache
from tests.linear import reference as ref
from tests.linear.people import KINDS, case_of, estimator, make_rows

Floats = NDArray[np.float64]

GONE = 7
DATA_FREE: dict[str, Any] = {"data_free": True, "rows": "refuse", "row_norm": 9.0}


def arrays_in(value: Any, path: str = "") -> dict[str, NDArray[Any]]:
    """Every array that a saved state holds, by its path."""
    if isinstance(value, np.ndarray):
        return {path: value}
    if sp.issparse(value):
        return {f"{path}.data": value.data, f"{path}.indices": value.indices}
    if hasattr(value, "_to_state"):
        value = value._to_state()
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {}
    arrays: dict[str, NDArray[Any]] = {}
    for name, part in value.items():
        arrays |= arrays_in(part, f"{path}.{name}")
    return arrays


def forgotten(kind: str, form: Any = np.asarray, **settings: Any) -> tuple[Any, Any, Any]:
    """A model without row `GONE`, and the rows and targets that it saw first.

    The row's values are unique.
    """
    X, y = make_rows(kind, 40, 4)
    X[GONE] = [2.71828, -3.14159, 1.41421, 0.57721]
    model = estimator(kind, sigma=1000.0, **settings).fit(form(X), y)
    if model.data_free:
        model.forget([GONE], X=form(X[[GONE]]), y=y[[GONE]])
    else:
        model.forget([GONE])
    return model, X, y


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_no_value_of_the_row_is_in_file_or_memory(kind: str, form: Any, tmp_path: Path) -> None:
    model, X, _ = forgotten(kind, form)
    save(model, tmp_path / "model.letheon")
    file = (tmp_path / "model.letheon").read_bytes()
    memory = [array.tobytes() for array in arrays_in(vars(model)).values()]
    for value in X[GONE]:
        needle = np.float64(value).tobytes()
        assert needle not in file
        assert all(needle not in part for part in memory)
    stored = model.rows_.X.toarray() if sp.issparse(model.rows_.X) else model.rows_.X
    assert not stored[GONE].any()


def test_rows_leave_the_memory_that_others_may_hold() -> None:
    X, y = make_rows()
    model = estimator(sigma=3.0).fit(X, y)
    rows, targets = model.rows_.X, model.rows_.y
    row = rows[GONE].copy()
    model.forget([GONE])
    assert not rows[GONE].any()
    assert targets[GONE] == 0
    model.forget(list(range(10, 20)))
    assert not (rows == row).all(axis=1).any()


def test_a_retrain_leaves_no_rows_in_old_memory() -> None:
    X, y = make_rows("ovr", 30)
    y[:-1], y[-1] = np.minimum(y[:-1], 1), 2
    model = estimator("ovr").fit(X, y)
    rows = model.rows_.X
    assert model.forget([29]).rebuilt == {"retrains": 1}
    assert not rows[29].any()


@pytest.mark.parametrize("kind", KINDS)
def test_only_data_free_models_save_a_hessian(kind: str, tmp_path: Path) -> None:
    X, y = make_rows(kind)
    model = estimator(kind).fit(X, y)
    d = 5
    sizes = {array.shape for array in arrays_in(canonical_state(model)).values()}
    assert not any(len(shape) == 2 and shape[0] == shape[1] >= d for shape in sizes)
    model.cache_.content.blocks[0].hessian[:] = 123.0
    before = (tmp_path / "a").with_suffix(".letheon")
    save(model, before)
    model.cache_ = Cache()
    after = tmp_path / "b.letheon"
    save(model, after)
    assert before.read_bytes() == after.read_bytes()


def canonical_state(model: Any) -> dict[str, Any]:
    """What a file holds of a model."""
    assert canonical.digest(model)
    return dict(vars(model))


@pytest.mark.parametrize("kind", KINDS)
def test_cached_matrices_are_those_of_the_remaining_rows(kind: str) -> None:
    """Subtracting what the others add leaves rounding: no rank-one part is left."""
    model, X, y = forgotten(kind)
    cache = model.cache_.content
    case = case_of(model, kind, np.delete(X, GONE, 0), np.delete(y, GONE))
    H = ref.data_hessian(case, cache.point)
    size = len(cache.blocks[0].hessian)
    for k, block in enumerate(cache.blocks):
        mine = H[k * size : (k + 1) * size, k * size : (k + 1) * size]
        for half in (np.tril(block.hessian), np.triu(block.hessian, 1).T):
            if half.any():
                kept = np.tril(mine) if np.diag(half).any() else np.tril(mine, -1)
                np.testing.assert_allclose(half, kept, atol=1e-12)
        assert not np.triu(block.inverse, 1).any()


@pytest.mark.parametrize("kind", KINDS)
def test_data_free_hessian_is_that_of_the_remaining_rows(kind: str) -> None:
    model, X, y = forgotten(kind, **DATA_FREE)
    saved = model.cache_._to_state()
    case = case_of(model, kind, np.delete(X, GONE, 0), np.delete(y, GONE))
    H = ref.data_hessian(case, saved["point"])
    size = len(saved["blocks"][0])
    scale = max(saved["tops"])
    for k, block in enumerate(saved["blocks"]):
        mine = np.tril(H[k * size : (k + 1) * size, k * size : (k + 1) * size])
        left = block - mine
        # On a grid: what differs is its rounding, and has no leading direction.
        assert abs(left).max() <= 2.0**-34 * scale
        both = left + np.tril(left, -1).T
        values = np.sort(abs(np.linalg.eigvalsh(both)))
        assert values[-1] <= 2.0**-34 * scale * size
    assert saved["ridge"] == pytest.approx(case.ridge)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_columns_that_only_the_row_had_are_not_seen_in_a_stored_hessian(form: Any) -> None:
    X, y = make_rows("logistic", 40, 6)
    X[:, 3:] = 0.0
    X[GONE, 3:5] = [1.7, -0.3]
    model = estimator(sigma=1000.0, **DATA_FREE).fit(form(X), y)
    touched = np.tril(model.cache_._to_state()["blocks"][0])
    assert touched[3, 3] > 0
    model.forget([GONE], X=form(X[[GONE]]), y=y[[GONE]])
    block = model.cache_._to_state()["blocks"][0]
    full = block + np.tril(block, -1).T
    assert not full[3:6].any()
    assert not model.cache_.content.blocks[0].hessian[3:6, 3:6].any()


def test_data_free_keeps_no_value_and_no_mark_of_the_row(tmp_path: Path) -> None:
    X, y = make_rows()
    X[GONE] = [2.71828, -3.14159, 1.41421, 0.57721]
    model = estimator(sigma=1000.0, **DATA_FREE).fit(X, y)
    mark = model.rows_.extra["fingerprint"][GONE].tobytes()
    values = {value.tobytes() for value in X.ravel()}
    save(model, tmp_path / "model.letheon")
    file = (tmp_path / "model.letheon").read_bytes()
    assert mark in file
    assert not any(value in file for value in values)
    model.forget([GONE], X=X[[GONE]], y=y[[GONE]])
    save(model, tmp_path / "model.letheon")
    assert mark not in (tmp_path / "model.letheon").read_bytes()


def test_what_is_declared_is_what_can_be_found() -> None:
    """From the point of a data-free model and the others' rows the row can be rebuilt: it says so.

    At fit the gradient of all rows vanished there. So the others' gradient is minus the row's own.
    """
    model, X, y = forgotten("logistic", **DATA_FREE)
    rest = case_of(model, "logistic", np.delete(X, GONE, 0), np.delete(y, GONE))
    point = model.cache_.content.point
    own = -(ref.gradient(rest, point) + model.l2 * point)[:, 0]
    np.testing.assert_allclose(own / own[-1], np.append(X[GONE], 1.0), rtol=1e-4)
    assert any("cache_: point" in text for text in model.residual_state_)
    model, *_ = forgotten("logistic")
    assert any("never saved" in text for text in model.residual_state_)
    assert any(text.startswith("weights_") for text in model.residual_state_)
    assert any(text.startswith("account_") for text in model.residual_state_)


def test_settling_moves_the_point_to_where_the_model_stands() -> None:
    model, X, y = forgotten("logistic")
    model.settle()
    rest = case_of(model, "logistic", np.delete(X, GONE, 0), np.delete(y, GONE))
    own = ref.gradient(rest, model.cache_.content.point)
    assert np.linalg.norm(own) <= model.tol * 39


def rebuilt(model: Any) -> list[Floats]:
    """Rows that may have been the last to leave, by all that the model's file holds.

    The old parameters are those from which a Newton step on the rows held leads to the present
    ones. The gradient there was that of the row that left.
    """
    X, y = (part[model.rows_.alive] for part in (model.rows_.X, model.rows_.y))
    ridge, now = model.l2 * len(y), model.weights_.open()[:, 0]
    rng = np.random.default_rng(0)

    def gradient(W: Floats) -> Floats:
        return np.asarray(X.T @ (expit(X @ W) - y) + ridge * W)

    def missed(step: Floats) -> Floats:
        W = now - step
        share = expit(X @ W)
        made = X.T @ (share * (1 - share) * (X @ step)) + ridge * step
        return np.asarray(1e6 * (gradient(W) + made))

    size = np.sqrt(20 * np.linalg.norm(gradient(now)) / len(y))
    rows = []
    for way in rng.normal(size=(20, len(now))):
        before = now - root(missed, size * way / np.linalg.norm(way), method="lm").x
        own = -(gradient(before) + model.l2 * before)
        rows.append(own / own[-1])
    return rows


def test_a_file_tells_of_the_last_row_until_the_model_settles(tmp_path: Path) -> None:
    """Declared in `residual_state_`, with the remedy."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 5))
    y = (X[:, 0] + rng.normal(size=300) > 0).astype(np.int64)
    model = estimator(sigma=3.0, l2=0.01).fit(X, y)
    model.forget([GONE])
    row = np.append(X[GONE], 1.0)
    errors = []
    for _ in range(2):
        save(model, tmp_path / "model.letheon")
        guesses = rebuilt(load(tmp_path / "model.letheon"))
        errors.append(min(np.linalg.norm(guess - row) for guess in guesses) / np.linalg.norm(row))
        model.settle()
    assert errors[0] < 0.2
    assert errors[1] > 0.5
    assert any("settle() prevents that" in text for text in model.residual_state_)
