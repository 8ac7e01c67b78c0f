"""scikit-learn's metadata routing carries ids and weights through its meta-estimators."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.base import clone, is_classifier
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from letheon import (
    BoostingClassifier,
    BoostingRegressor,
    DaREForestClassifier,
    DaREForestRegressor,
    ForgetPipeline,
    ForgetSearchCV,
    InfluenceClassifier,
    NaiveUnlearner,
    NearestCentroid,
    SISAClassifier,
    SISARegressor,
    state,
)
from letheon.preprocessing import StandardScaler
from letheon.sums import (
    ComplementNB,
    GaussianNB,
    LinearDiscriminantAnalysis,
    MultinomialNB,
    Ridge,
    RidgeClassifier,
)

RNG = np.random.default_rng(0)
X = np.abs(RNG.normal(size=(60, 3)))
LABELS = (X[:, 0] > X[:, 1]).astype(int)
IDS = np.array([f"p{number:02d}" for number in range(60)])
WEIGHTS = RNG.integers(1, 4, 60)
# scikit-learn's counterparts of these models have `sample_weight`.
WEIGHTED: list[Any] = [
    DaREForestClassifier(n_estimators=2, random_state=0),
    DaREForestRegressor(n_estimators=2, random_state=0),
    BoostingClassifier(n_estimators=2, random_state=0),
    BoostingRegressor(n_estimators=2, random_state=0),
    NaiveUnlearner(LogisticRegression(), random_state=0),
    SISAClassifier(LogisticRegression(), n_shards=2, random_state=0),
    SISARegressor(SklearnRidge(), n_shards=2, random_state=0),
    GaussianNB(random_state=0),
    MultinomialNB(),
    ComplementNB(),
    Ridge(random_state=0),
    RidgeClassifier(random_state=0),
]
OTHERS: list[Any] = [
    InfluenceClassifier(sigma=0.1, random_state=0),
    LinearDiscriminantAnalysis(random_state=0),
    NearestCentroid(),
    ForgetPipeline([("scale", StandardScaler(random_state=0)), ("model", Ridge(random_state=0))]),
    ForgetSearchCV(RidgeClassifier(random_state=0), {"alpha": [1.0]}, random_state=0),
]


@pytest.fixture(autouse=True)
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def target_of(model: Any) -> Any:
    return LABELS if is_classifier(model) else X[:, 0] + X[:, 1]


def names(models: list[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", models, ids=lambda model: type(model).__name__)


def request(model: Any, **requests: bool) -> Any:
    copy: Any = clone(model)
    return copy.set_fit_request(**requests)


@names(WEIGHTED)
def test_a_search_and_a_pipeline_pass_ids_and_weights(model: Any) -> None:
    y, given = target_of(model), {"ids": IDS, "sample_weight": WEIGHTS}
    direct: Any = clone(model)
    expected = direct.fit(X, y, **given).digest()
    routed = request(model, ids=True, sample_weight=True)
    if hasattr(routed, "set_score_request"):
        routed.set_score_request(sample_weight=False)
    search = GridSearchCV(routed, {}, cv=2).fit(X, y, **given)
    assert search.best_estimator_.digest() == expected
    assert state.decode(state.encode(search.best_estimator_)).digest() == expected
    steps = Pipeline([("same", FunctionTransformer()), ("model", routed)]).fit(X, y, **given)
    assert steps["model"].digest() == expected
    unweighted: Any = clone(model)
    assert unweighted.fit(X, y, ids=IDS).digest() != expected


@names(WEIGHTED)
def test_weights_are_used_in_scores_too(model: Any) -> None:
    y, given = target_of(model), {"ids": IDS, "sample_weight": WEIGHTS}
    routed = request(model, ids=True, sample_weight=True)
    if not hasattr(routed, "set_score_request"):
        pytest.skip("the score of the inner estimator is used")
    routed.set_score_request(sample_weight=True)
    results = cross_validate(routed, X, y, cv=2, params=given, return_estimator=True)
    for fitted, (_, test) in zip(results["estimator"], folds(model, y), strict=True):
        score = fitted.score(X[test], y[test], sample_weight=WEIGHTS[test])
        assert score in results["test_score"]


def folds(model: Any, y: Any) -> Any:
    from sklearn.model_selection import check_cv

    return check_cv(2, y, classifier=is_classifier(model)).split(X, y)


@names(OTHERS)
def test_all_other_models_take_ids(model: Any) -> None:
    y = target_of(model)
    routed = request(model, ids=True)
    results = cross_validate(routed, X, y, cv=2, params={"ids": IDS}, return_estimator=True)
    for fitted, (train, _) in zip(results["estimator"], folds(model, y), strict=True):
        assert sorted(fitted.ids_.tolist()) == sorted(IDS[train].tolist())
        fitted.forget(fitted.ids_[:1].tolist())


@names([*WEIGHTED, *OTHERS])
def test_unrequested_ids_are_an_error_of_scikit_learn(model: Any) -> None:
    copy: Any = clone(model)
    with pytest.raises(Exception, match="ids"):
        cross_validate(copy, X, target_of(model), cv=2, params={"ids": IDS})
