"""Models and predictors in the tools of scikit-learn."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import VotingClassifier, VotingRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from letheon import (
    BoostingClassifier,
    BoostingRegressor,
    DaREForestRegressor,
    InfluenceClassifier,
    SISAClassifier,
    SISARegressor,
)
from letheon.preprocessing import StandardScaler
from letheon.sums import LinearDiscriminantAnalysis, Ridge, RidgeClassifier
from tests.predictor.models import NUMBERS, TARGET, THREE, TWO, make_forest, make_pipeline

# Meta-estimators encode other labels, and a frozen estimator would not know them.
LABELS = (TWO == "yes").astype(int)
CLASSIFIERS = [
    make_forest(),
    BoostingClassifier(n_estimators=5, random_state=0),
    RidgeClassifier(random_state=0),
    LinearDiscriminantAnalysis(random_state=0),
    InfluenceClassifier(sigma=0.1),
    SISAClassifier(LogisticRegression(), n_shards=2, random_state=0),
    make_pipeline(StandardScaler(random_state=0), make_forest()),
]
REGRESSORS = [
    DaREForestRegressor(n_estimators=5, random_state=0),
    BoostingRegressor(n_estimators=5, random_state=0),
    Ridge(random_state=0),
]


@pytest.mark.parametrize("model", CLASSIFIERS + REGRESSORS, ids=lambda m: type(m).__name__)
def test_inspection(model: Any) -> None:
    y = TWO if is_classifier(model) else TARGET
    fitted = clone(model).fit(NUMBERS, y)
    for each in (fitted, fitted.predictor()):
        means = permutation_importance(each, NUMBERS, y, n_repeats=2, random_state=0)
        assert means.importances_mean.argmax() == 0
        curve = partial_dependence(each, NUMBERS, [0], grid_resolution=5)["average"][0]
        assert curve[0] < curve[-1]


@pytest.mark.parametrize("model", CLASSIFIERS, ids=lambda m: type(m).__name__)
def test_classifiers_in_ensembles(model: Any) -> None:
    predictor = clone(model).fit(NUMBERS, LABELS).predictor()
    assert is_classifier(predictor)
    assert predictor.score(NUMBERS, LABELS) == np.mean(predictor.predict(NUMBERS) == LABELS)
    for inner in (clone(model), FrozenEstimator(predictor)):
        calibrated = CalibratedClassifierCV(inner, cv=2).fit(NUMBERS, LABELS)
        assert calibrated.score(NUMBERS, LABELS) > 0.8
        voting = VotingClassifier([("model", inner), ("other", DecisionTreeClassifier())])
        assert voting.fit(NUMBERS, LABELS).score(NUMBERS, LABELS) > 0.8


def test_regressors_in_ensembles() -> None:
    parts = [(type(model).__name__, clone(model)) for model in REGRESSORS]
    forest: Any = clone(REGRESSORS[0])
    predictor = forest.fit(NUMBERS, TARGET).predictor()
    assert is_regressor(predictor)
    parts.append(("predictor", FrozenEstimator(predictor)))
    assert VotingRegressor(parts).fit(NUMBERS, TARGET).score(NUMBERS, TARGET) > 0.8


def test_decision_values_of_shards_without_probabilities() -> None:
    model = SISAClassifier(LinearSVC(random_state=0), n_shards=3, random_state=0)
    assert hasattr(model, "decision_function")
    model.fit(NUMBERS, THREE)
    values = [each.decision_function(NUMBERS) for each in model.estimators_]
    assert np.array_equal(model.decision_function(NUMBERS), np.mean(values, axis=0))
    assert not hasattr(SISAClassifier(DecisionTreeClassifier()), "decision_function")


def test_decision_values_have_the_order_of_probabilities() -> None:
    model = SISAClassifier(LogisticRegression(), n_shards=3, random_state=0).fit(NUMBERS, TWO)
    shares = model.predict_proba(NUMBERS)
    assert np.array_equal(model.decision_function(NUMBERS), shares[:, 1] - shares[:, 0])
    model.fit(NUMBERS, THREE)
    assert np.array_equal(model.decision_function(NUMBERS), model.predict_proba(NUMBERS))


def test_without_a_shard_of_all_classes_decision_values_are_votes() -> None:
    model = SISAClassifier(LinearSVC(random_state=0), n_shards=2, random_state=0)
    ids = np.arange(len(NUMBERS))
    model.fit(NUMBERS, TWO, ids=ids)
    in_first = np.isin(ids, model.ensemble_.shards[0].rows.ids.to_array())
    y = np.where(in_first, THREE % 2, 1 + THREE % 2)  # classes 0 and 1, and classes 1 and 2
    model.fit(NUMBERS, y, ids=ids)
    assert [each.classes_.tolist() for each in model.estimators_] == [[0, 1], [1, 2]]
    assert np.array_equal(model.decision_function(NUMBERS), model.predict_proba(NUMBERS))


def test_importances_of_shards() -> None:
    model = SISARegressor(DecisionTreeRegressor(), n_shards=3, random_state=0).fit(NUMBERS, TARGET)
    assert model.feature_importances_.sum() == pytest.approx(1)
    assert model.feature_importances_.argmax() == 0
    other = SISARegressor(SklearnRidge(), n_shards=3, random_state=0).fit(NUMBERS, TARGET)
    assert not hasattr(other, "feature_importances_")
