"""Bad input: a clear text, not a byte of the model changed, nothing spent. And secrets stay so."""

import copy
import json
import logging
import pickle
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks as sklearn_checks

from letheon import InfluenceClassifier, InfluenceRegressor, save
from letheon.checks import parametrize_with_checks
from letheon.exceptions import (
    AssumptionError,
    ChangedParametersError,
    EmptyModelError,
    GuaranteeWarning,
    UnknownIdError,
)
from letheon.linear import _newton
from letheon.linear._account import GradientLimits, OutputNoise
from tests.linear.people import estimator, form_no_matrix, make_rows

SETTINGS = [
    ({"l2": 0.0}, r"l2=0\.0; expected a number above 0: .*separable"),
    ({"l2": -1.0}, "l2=-1.0; expected a number above 0"),
    ({"l2": float("nan")}, "l2=nan"),
    ({"l2": "big"}, "l2='big'"),
    ({"l2": True}, "l2=True"),
    ({"sigma": -1.0}, "sigma=-1.0; expected the scale of the noise"),
    ({"sigma": float("inf")}, "sigma=inf"),
    ({"epsilon": 0}, "epsilon=0; expected a number above 0"),
    ({"epsilon": float("nan")}, "epsilon=nan; expected a number above 0"),
    ({"delta": 1.0}, r"delta=1\.0; expected a number of at least 0 and below 1"),
    ({"delta": -0.1}, "delta=-0.1; expected a number of at least 0"),
    ({"reg": "mean"}, r"reg='mean'; expected one of \('per_sample', 'total'\)"),
    ({"multi_class": "multinomial"}, "multi_class='multinomial'; expected one of"),
    ({"bound": "tight"}, "bound='tight'; expected one of"),
    ({"if_unproved": "warn"}, "if_unproved='warn'; expected one of"),
    ({"rows": "scale"}, "rows='scale'; expected one of"),
    ({"rows": "clip"}, "rows='clip' needs row_norm, a positive bound"),
    ({"rows": "refuse", "row_norm": 0.0}, r"needs row_norm, .*got row_norm=0\.0"),
    ({"row_norm": 2.0}, r"row_norm=2\.0 has no effect with rows='keep'"),
    ({"batch_size": 0}, "batch_size=0; expected a whole number, 1 or more"),
    ({"batch_size": 1.5}, r"batch_size=1\.5; expected a whole number"),
    ({"tol": 0.0}, r"tol=0\.0; expected a number above 0"),
    ({"max_iter": 0}, "max_iter=0; expected a whole number, 1 or more"),
    ({"noise_seed": -1}, "noise_seed must be from 0"),
    ({"data_free": True}, "data_free=True needs row_norm"),
]


@pytest.mark.parametrize(("settings", "text"), SETTINGS)
def test_settings_without_sense(settings: dict[str, Any], text: str) -> None:
    X, y = make_rows()
    model = estimator().set_params(**settings)
    with pytest.raises(ValueError, match=text):
        model.fit(X, y)
    assert not hasattr(model, "account_")
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"loss": "huber"}, "loss='huber'; expected one of"), ({"huber_scale": 0}, "huber_scale=0")],
)
def test_settings_of_the_regression(settings: dict[str, Any], text: str) -> None:
    X, y = make_rows("squared")
    with pytest.raises(ValueError, match=text):
        InfluenceRegressor(**settings).fit(X, y)


def test_a_failed_fit_keeps_the_old_model(tmp_path: Path) -> None:
    X, y = make_rows()
    model = estimator().fit(X, y)
    digest = model.digest()
    for bad_X, bad_y in ((X * np.nan, y), (X[:5], y), (X, np.zeros(60)), (X, None)):
        with pytest.raises(ValueError):  # noqa: PT011  (the texts have tests of their own)
            model.fit(bad_X, bad_y)
        assert model.digest() == digest


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_numbers_that_are_none(bad: float, form: Any) -> None:
    X, y = make_rows()
    X[3, 1] = bad
    with pytest.raises(ValueError, match=r"X contains (NaN|infinity)|Input X contains"):
        estimator().fit(form(X), y)
    X, y = make_rows("squared")
    y[3] = bad
    with pytest.raises(ValueError, match="y contains"):
        estimator("squared").fit(X, y)


def test_a_single_class_is_refused() -> None:
    X, _ = make_rows()
    with pytest.raises(
        ValueError, match=r"needs at least 2 classes in y, but y has only one class: .*4"
    ):
        estimator().fit(X, np.full(60, 4))


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_rows_above_the_declared_norm_are_refused(form: Any) -> None:
    X, y = make_rows()
    X[2] = [30.0, 40.0, 0.0, 0.0]
    with pytest.raises(
        AssumptionError, match=r"norm above row_norm=20, up to 50\.01 .*rows='clip'"
    ):
        estimator(rows="refuse", row_norm=20.0).fit(form(X), y)
    fitted = estimator(rows="refuse", row_norm=51.0).fit(form(X), y)
    assert fitted.n_rows_ == 60


def test_training_that_the_noise_does_not_hide() -> None:
    X, y = make_rows()
    model = estimator(noise_seed=None, sigma=1e-9, tol=1e-4, max_iter=1)
    with pytest.raises(
        AssumptionError, match=r"training (left|stopped at) a gradient norm of .*increase max_iter"
    ):
        model.fit(X, y)
    model.set_params(if_unproved="downgrade")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    assert any(issubclass(warning.category, GuaranteeWarning) for warning in caught)
    assert model.guarantee_.kind == "empirical"


REQUESTS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ([99], {}, UnknownIdError, r"ids not in this model: \[99\]"),
    ([1, 99], {}, UnknownIdError, "nothing was forgotten"),
    (["1"], {}, UnknownIdError, "has int ids, but the request has"),
    (list(range(60)), {}, EmptyModelError, "own all 60 row"),
    (list(range(0, 60, 2)), {}, EmptyModelError, "only one class would remain"),
    ([1, 2], {"batch_size": 3}, ValueError, "batch_size=3 is larger than"),
    ([1, 2], {"batch_size": 0}, ValueError, "batch_size=0; expected a whole number"),
    ([1, 2], {"batch_size": "two"}, ValueError, "batch_size='two'; expected a whole number"),
    (
        [1],
        {"X": np.zeros((1, 4)), "y": [0]},
        ValueError,
        "forget accepts X and y only with data_free=True",
    ),
]


@pytest.mark.parametrize(("ids", "options", "error", "text"), REQUESTS)
@pytest.mark.parametrize("products", [False, True])
def test_requests_that_fail_change_nothing(
    ids: Any,
    options: dict[str, Any],
    error: type[Exception],
    text: str,
    products: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if products:
        form_no_matrix(monkeypatch, above=2)
    X, y = make_rows()
    model = estimator(noise_seed=None).fit(X, y)
    save(model, tmp_path / "before.letheon")
    account = model.account_
    with pytest.raises(error, match=text):
        model.forget(ids, **options)
    save(model, tmp_path / "after.letheon")
    before, after = ((tmp_path / f"{name}.letheon").read_bytes() for name in ("before", "after"))
    assert before == after
    assert model.account_ is account


def test_changed_parameters_are_noticed() -> None:
    X, y = make_rows()
    for name, value in (("sigma", 9.0), ("l2", 0.2), ("epsilon", 5.0), ("reg", "total")):
        model = estimator().fit(X, y)
        digest = model.digest()
        setattr(model, name, value)
        with pytest.raises(ChangedParametersError, match="Restore their old values, or call fit"):
            model.forget([1])
        setattr(model, name, estimator().get_params()[name])
        assert model.digest() == digest


def test_a_request_that_fails_midway_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = make_rows()
    model = estimator(sigma=1e-3).fit(X, y)
    account, digest = model.account_, model.digest()
    block = model.cache_.content.blocks[0].hessian.copy()

    def broken(*_: Any) -> Any:
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr("letheon.linear._problem.FitProblem.gradient_and_reach", broken)
        with pytest.raises(MemoryError):
            model.forget([1, 2, 3])
    assert model.account_ is account
    assert model.digest() == digest
    np.testing.assert_array_equal(model.cache_.content.blocks[0].hessian, block)


def test_a_retrain_that_cannot_be_covered_raises_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = make_rows()
    model = estimator(noise_seed=None).fit(X, y)
    model.account_ = replace(model.account_, limit=0.0)
    digest = model.digest()
    monkeypatch.setattr(_newton, "_MOST_POLISHES", 0)
    monkeypatch.setattr(OutputNoise, "compute_limits", lambda *_: GradientLimits(-1.0, -1.0))
    with pytest.raises(AssumptionError, match="training ended at a gradient"):
        model.forget([1])
    assert model.digest() == digest


def shown(model: Any, receipt: Any) -> str:
    """Everything that people print, log or send around."""
    claim = model.guarantee_
    texts = [repr(model), str(model), repr(claim), str(claim), repr(receipt), str(receipt)]
    texts += [repr(model.get_params()), repr(model.account_), repr(model.weights_)]
    texts += [f"{model.weights_}"]
    texts += [repr(model.source_), repr(model.residual_state_)]
    for part in (claim, receipt):
        if hasattr(part, "to_dict"):
            texts.append(json.dumps(part.to_dict(), default=repr))
    return " ".join(texts)


@pytest.mark.parametrize("kind", ["logistic", "softmax", "squared"])
def test_sealed_parameters_are_not_in_anything_shown(
    kind: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = make_rows(kind)
    caplog.set_level(logging.DEBUG)
    model = estimator(kind, noise_seed=None, sigma=2.0).fit(X, y)
    receipt = model.forget([5], digest=True)
    printed = capsys.readouterr()
    text = shown(model, receipt) + caplog.text + printed.out + printed.err
    for number in model.weights_.open().ravel():
        for form in (repr(float(number)), f"{number:.6g}", f"{number:.4f}", number.tobytes().hex()):
            assert form.lstrip("-") not in text
    assert "<secret>" in text


def test_clones_carry_no_state() -> None:
    X, y = make_rows()
    model = estimator("softmax", sigma=2.0).fit(X, y)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert not hasattr(twin, "noise_")


def test_pickles_leave_the_cache_behind() -> None:
    X, y = make_rows()
    model = estimator().fit(X, y)
    assert model.cache_.content is not None
    twin = pickle.loads(pickle.dumps(model))
    assert twin.cache_.content is None
    assert copy.deepcopy(model).cache_.content is None
    twin.forget([1])
    model.forget([1])
    # The Hessian was recomputed at the current parameters: one step of training apart.
    np.testing.assert_allclose(twin.coef_, model.coef_, rtol=1e-6)


def test_predictions_while_rows_leave() -> None:
    X, y = make_rows("ovr", 200)
    model = estimator("ovr", sigma=0.2).fit(X, y)
    errors: list[BaseException] = []
    stop = threading.Event()

    def look() -> None:
        try:
            while not stop.is_set():
                assert model.predict_proba(X).shape == (200, 3)
                assert model.guarantee_.kind == "empirical"
        except BaseException as error:  # noqa: BLE001  (told to the main thread)
            errors.append(error)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for person in range(30):
        model.forget([person])
    stop.set()
    for reader in readers:
        reader.join()
    assert not errors
    assert model.n_rows_ == 170


PUBLIC = [
    # Checks that fit twice and compare need noise that can be repeated.
    InfluenceClassifier(noise_seed=0),
    InfluenceClassifier(multi_class="softmax", noise_seed=0),
    InfluenceRegressor(noise_seed=0),
    InfluenceRegressor(loss="pseudo_huber", noise_seed=0),
]


@sklearn_checks(PUBLIC[::2])
def test_conventions_of_scikit_learn(estimator: Any, check: Any) -> None:
    assert check(estimator) is None


@pytest.mark.soak
@sklearn_checks(PUBLIC[1::2])
def test_conventions_of_scikit_learn_of_variants(estimator: Any, check: Any) -> None:
    assert check(estimator) is None


@parametrize_with_checks([InfluenceClassifier(), InfluenceRegressor()])
def test_promises_of_the_library(estimator: Any, check: Any) -> None:
    assert check(estimator) is None


@pytest.mark.soak
@parametrize_with_checks(
    [
        InfluenceClassifier(multi_class="softmax"),
        InfluenceClassifier(reg="total", l2=5.0, delta=0.0, sigma=0.2),
        InfluenceRegressor(loss="pseudo_huber"),
    ]
)
def test_promises_of_the_library_with_other_settings(estimator: Any, check: Any) -> None:
    assert check(estimator) is None
