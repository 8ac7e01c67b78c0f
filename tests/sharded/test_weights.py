"""Weights of rows in SISA and in naive retraining: exact, and handed to the inner estimator."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import letheon
from letheon import NaiveUnlearner, SISAClassifier, SISARegressor
from letheon.ledger import Ledger
from tests.sharded.people import make_people

PEOPLE = make_people(40, n_classes=2)
X, Y, IDS = PEOPLE
WEIGHTS = np.random.default_rng(1).integers(1, 5, len(X)) / 2
GONE = [3, 7, 11]
KEPT = ~np.isin(IDS, GONE)
SGD = SGDClassifier(loss="log_loss", max_iter=3, tol=None)
MODELS: dict[str, Any] = {
    "naive": NaiveUnlearner(LogisticRegression(), random_state=0),
    "sisa": SISAClassifier(DecisionTreeClassifier(max_depth=2), n_shards=3, random_state=0),
    "slices": SISAClassifier(SGD, n_shards=2, n_slices=3, epochs=2, random_state=0),
    "one slice": SISAClassifier(GaussianNB(), n_shards=2, epochs=1, random_state=0),
    "regressor": SISARegressor(Ridge(), n_shards=2, random_state=0),
}


def fitted(kind: str, keep: Any = slice(None), weights: Any = WEIGHTS) -> Any:
    model: Any = clone(MODELS[kind])
    given = {} if weights is None else {"sample_weight": weights[keep]}
    return model.fit(X[keep], Y[keep], ids=IDS[keep], **given)


@pytest.mark.parametrize("kind", MODELS)
def test_forgetting_is_a_fit_on_the_remaining_weights(kind: str) -> None:
    model = fitted(kind)
    model.forget(GONE)
    assert model.digest() == fitted(kind, KEPT).digest()
    assert model.digest() != fitted(kind, KEPT, None).digest()


@pytest.mark.parametrize("kind", MODELS)
def test_learning_takes_weights(kind: str) -> None:
    order = np.concatenate([np.flatnonzero(KEPT), np.flatnonzero(~KEPT)])
    model = fitted(kind, order[: KEPT.sum()])
    late = order[KEPT.sum() :]
    model.learn(X[late], Y[late], ids=IDS[late], sample_weight=WEIGHTS[late])
    assert model.digest() == fitted(kind, order).digest()


@pytest.mark.parametrize("kind", MODELS)
def test_weights_are_given_always_or_never(kind: str) -> None:
    for model, given in ((fitted(kind), {}), (fitted(kind, weights=None), {"sample_weight": [1]})):
        before = model.digest()
        with pytest.raises(ValueError, match="some rows have sample_weight and some do not"):
            model.learn(X[:1], Y[:1], ids=[99], **given)
        assert model.digest() == before


def test_a_shard_is_the_inner_estimator_with_its_weights() -> None:
    model = SISARegressor(Ridge(), n_shards=2, random_state=0)
    model.fit(X, Y, ids=IDS, sample_weight=WEIGHTS)
    for shard in model.ensemble_.shards:
        mine = np.isin(IDS, shard.rows.ids.to_array())
        alone = Ridge().fit(X[mine], Y[mine].astype(float), sample_weight=WEIGHTS[mine])
        np.testing.assert_allclose(shard.model.coef_, alone.coef_)


def test_each_slice_has_its_own_weights() -> None:
    model = SISAClassifier(GaussianNB(), n_shards=1, n_slices=3, stage_data="new", random_state=0)
    model.fit(X, Y, ids=IDS, sample_weight=WEIGHTS)
    alone = GaussianNB().fit(X, Y, sample_weight=WEIGHTS)
    np.testing.assert_allclose(model.estimators_[0].theta_, alone.theta_)


@pytest.mark.parametrize(
    ("weights", "error", "reason"),
    [
        ([1.0], ValueError, r"shape \(1,\)"),
        (np.full(len(X), np.nan), ValueError, "NaN"),
        (-WEIGHTS, ValueError, "negative"),
    ],
)
def test_bad_weights_are_refused(weights: Any, error: type[Exception], reason: str) -> None:
    for kind in ("naive", "sisa"):
        with pytest.raises(error, match=reason):
            clone(MODELS[kind]).fit(X, Y, sample_weight=weights)


@pytest.mark.parametrize("kind", MODELS)
def test_rows_of_weight_zero_are_omitted(kind: str) -> None:
    weights = np.where(KEPT, WEIGHTS, 0.0)
    model = fitted(kind, weights=weights)
    assert model.digest() == fitted(kind, KEPT).digest()
    assert not np.isin(model.ids_, GONE).any()
    with pytest.raises(ValueError, match="at least one non-zero"):
        fitted(kind, weights=np.zeros(len(X)))


@pytest.mark.parametrize("method", [NaiveUnlearner, SISAClassifier])
def test_an_estimator_without_weights_is_named(method: Any) -> None:
    with pytest.raises(TypeError, match=r"KNeighborsClassifier\.fit does not accept it"):
        method(KNeighborsClassifier()).fit(X, Y, sample_weight=WEIGHTS)


def test_weights_survive_a_file_and_a_ledger(tmp_path: Any) -> None:
    model = fitted("sisa")
    letheon.save(model, tmp_path / "model")
    loaded = letheon.load(tmp_path / "model")
    assert loaded.forget(GONE).n_ids == 3
    assert loaded.digest() == fitted("sisa", KEPT).digest()
    with Ledger.create(tmp_path / "home", name="weights") as ledger:
        params = {"sample_weight": WEIGHTS}
        ledger.models.register(model, X, Y, ids=IDS, name="m", row_params=params)
        ledger.requests.submit(GONE, model="m", verified=True)
        ledger.run_once(force=True)
        bundle = ledger.export(tmp_path / "bundle", tier="auditor")
        assert letheon.audit.audit(bundle, key=ledger.public_key).passed
        assert ledger.models.load("m").digest() == loaded.digest()


def test_log_probabilities() -> None:
    model = SISAClassifier(DecisionTreeClassifier(), n_shards=1, random_state=0).fit(X, Y)
    logs = model.predict_log_proba(X)
    assert np.isneginf(logs).any()
    np.testing.assert_array_equal(np.exp(logs), model.predict_proba(X))
    naive = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, Y)
    np.testing.assert_allclose(np.exp(naive.predict_log_proba(X)), naive.predict_proba(X))
    assert not hasattr(NaiveUnlearner(Ridge()), "predict_log_proba")
