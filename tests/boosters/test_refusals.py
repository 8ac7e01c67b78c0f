"""Boosters whose fits may differ, or that letheon cannot save, are refused before training."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

from letheon import NaiveUnlearner, SISAClassifier
from letheon.exceptions import CannotForgetError, UnsupportedStateError

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

X = np.random.default_rng(0).normal(size=(80, 2))
Y = (X[:, 0] > 0).astype(int)


def own_objective(labels: Any, scores: Any) -> Any:
    return scores - labels, np.ones(len(labels))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "XGBClassifier",
        {"booster": "gblinear"},
        r"booster is 'gblinear' .*'gbtree'",
    ),
    ("XGBClassifier", {"booster": "dart"}, "booster is 'dart'"),
    ("XGBClassifier", {"tree_method": "approx"}, r"tree_method is 'approx'.*'hist'"),
    ("XGBClassifier", {"device": "cuda"}, r"device is 'cuda' \(allowed: None, 'cpu'\)"),
    (
        "XGBClassifier",
        {"early_stopping_rounds": 3},
        r"early_stopping_rounds is 3 .*None",
    ),
    ("XGBClassifier", {"objective": own_objective}, "objective is a function.*built-in"),
    ("XGBClassifier", {"callbacks": [1]}, "callbacks"),
    ("XGBClassifier", {"multi_strategy": "multi_output_tree"}, "multi_strategy"),
    ("XGBClassifier", {"nthread": 4}, r"parameter\(s\) nthread"),
    ("XGBClassifier", {"updater": "shotgun"}, r"parameter\(s\) updater"),
    ("XGBRFClassifier", {}, "expected one of LGBMClassifier"),
    ("LGBMClassifier", {"deterministic": False}, r"deterministic is False \(allowed: None, True\)"),
    ("LGBMClassifier", {"device": "gpu"}, r"device is 'gpu' \(allowed: None, 'cpu'\)"),
    ("LGBMClassifier", {"boosting_type": "rf"}, r"boosting_type is 'rf' \(allowed: None, 'gbdt'\)"),
    ("LGBMClassifier", {"linear_tree": True}, r"linear_tree is True \(allowed: None, False\)"),
    ("LGBMClassifier", {"objective": own_objective}, "objective is a function.*built-in"),
    ("LGBMClassifier", {"early_stopping_round": 3}, r"parameter\(s\) early_stopping_round"),
    ("LGBMClassifier", {"forcedsplits_filename": "a.json"}, "forcedsplits_filename"),
    ("LGBMClassifier", {"num_threads": 2}, r"parameter\(s\) num_threads"),
]


def make(name: str, params: dict[str, Any]) -> Any:
    return getattr(xgboost if name.startswith("XGB") else lightgbm, name)(**params)


@pytest.mark.parametrize(("name", "params", "message"), REFUSED)
def test_a_setting_is_refused_by_name(
    name: str, params: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = make(name, params)
    monkeypatch.setattr(type(estimator), "fit", lambda *_: pytest.fail("trained"))
    for model in (NaiveUnlearner(estimator), SISAClassifier(estimator, n_shards=2)):
        with pytest.raises(CannotForgetError, match=message):
            model.fit(X, Y)
        assert not model.__sklearn_is_fitted__()


def test_a_function_without_a_name_is_refused() -> None:
    with pytest.raises(UnsupportedStateError, match="lambda"):
        NaiveUnlearner(lightgbm.LGBMRegressor(objective=lambda a, b: (a, b))).fit(X, Y)


@pytest.mark.parametrize(
    ("name", "version"), [("XGBClassifier", "3.3.0"), ("LGBMClassifier", "4.5.0")]
)
def test_other_versions_are_refused(
    name: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = make(name, {})
    package = xgboost if name.startswith("XGB") else lightgbm
    monkeypatch.setattr(package, "__version__", version)
    with pytest.raises(CannotForgetError, match=f"{version} was not tested.*install a version"):
        NaiveUnlearner(estimator).fit(X, Y)


def test_a_model_without_trees_is_refused_when_fit_ends() -> None:
    with pytest.raises(UnsupportedStateError, match="number of trees"):
        NaiveUnlearner(xgboost.XGBClassifier(n_estimators=0)).fit(X, Y)


class CatBoost(BaseEstimator):
    """Named like the base class of all estimators of CatBoost."""


CatBoost.__module__, CatBoost.__qualname__ = "catboost.core", "CatBoost"


class CatBoostClassifier(ClassifierMixin, CatBoost):
    def fit(self, X: Any, y: Any) -> Any:
        pytest.fail("trained")


@pytest.mark.parametrize("wrap", [NaiveUnlearner, SISAClassifier])
def test_catboost_is_refused_before_training(wrap: Any) -> None:
    with pytest.raises(UnsupportedStateError, match="cannot save models of CatBoost yet"):
        wrap(CatBoostClassifier()).fit(X, Y)


def test_labels_that_xgboost_does_not_take_leave_the_model_unchanged() -> None:
    labels = np.where(X[:, 1] > 1, 2, Y)
    model = NaiveUnlearner(xgboost.XGBClassifier(n_estimators=2), random_state=0).fit(X, labels)
    before = model.digest()
    with pytest.raises(ValueError, match=r"nothing was changed.*Invalid classes"):
        model.forget(np.flatnonzero(labels == 0))
    assert model.digest() == before
