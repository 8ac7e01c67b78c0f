"""LightGBM and XGBoost become boosting that forgets exactly, with their parameters."""

from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import letheon
from letheon import BoostingClassifier, BoostingRegressor
from letheon.exceptions import CannotForgetError

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")


def convert_alone(estimator: Any, **options: Any) -> tuple[Any, Any]:
    model, report = letheon.convert(estimator, return_report=True, **options)
    return model, report.rows[0]


CARRIED: list[tuple[Any, type, dict[str, Any]]] = [
    (lightgbm.LGBMClassifier(), BoostingClassifier, {"learning_rate": 0.1, "max_leaves": 31}),
    (
        lightgbm.LGBMRegressor(
            objective="poisson",
            num_leaves=8,
            min_child_samples=5,
            colsample_bytree=0.5,
            reg_lambda=2.0,
            n_estimators=7,
            n_jobs=2,
            random_state=4,
            verbose=-1,
        ),
        BoostingRegressor,
        {"loss": "poisson", "max_leaves": 8, "min_samples_leaf": 5, "colsample": 0.5}
        | {"l2_regularization": 2.0, "n_estimators": 7, "n_jobs": 2, "random_state": 4},
    ),
    (xgboost.XGBClassifier(), BoostingClassifier, {"learning_rate": 0.3, "max_leaves": 64}),
    (
        xgboost.XGBRegressor(
            n_estimators=7, max_depth=3, learning_rate=0.2, max_bin=256, reg_lambda=0.5, n_jobs=1
        ),
        BoostingRegressor,
        {"n_estimators": 7, "max_leaves": 8, "learning_rate": 0.2, "max_bins": 254}
        | {"l2_regularization": 0.5, "n_jobs": 1},
    ),
]


@pytest.mark.parametrize(("estimator", "kind", "expected"), CARRIED)
def test_parameters_are_carried_over(estimator: Any, kind: type, expected: dict[str, Any]) -> None:
    model, row = convert_alone(estimator, strict=True)
    assert type(model) is kind
    assert {name: getattr(model, name) for name in expected} == expected
    assert (row.kind, row.guarantee, row.lost) == ("other algorithm", "exact", ())


@pytest.mark.parametrize(
    ("estimator", "lost"),
    [
        (lightgbm.LGBMClassifier(num_leaves=127), "num_leaves=127 (a tree has at most 64 leaves)"),
        (lightgbm.LGBMClassifier(reg_alpha=0.5), "reg_alpha=0.5"),
        (lightgbm.LGBMClassifier(subsample=0.5), "subsample=0.5"),
        (lightgbm.LGBMClassifier(scale_pos_weight=3), "scale_pos_weight=3"),
        (lightgbm.LGBMRegressor(early_stopping_round=5), "early_stopping_round=5 (the number"),
        (xgboost.XGBClassifier(gamma=1.0), "gamma=1.0"),
        (xgboost.XGBClassifier(max_depth=8), "max_depth=8 (a tree has at most 64 leaves)"),
        (xgboost.XGBRegressor(early_stopping_rounds=5), "early_stopping_rounds=5 (the number"),
    ],
)
def test_lost_parameters(estimator: Any, lost: str) -> None:
    _, row = convert_alone(estimator)
    assert len(row.lost) == 1
    assert row.lost[0].startswith(lost)
    with pytest.raises(CannotForgetError, match="cannot be carried over"):
        letheon.convert(estimator, strict=True)


@pytest.mark.parametrize(
    "estimator",
    [
        lightgbm.LGBMClassifier(boosting_type="dart"),
        lightgbm.LGBMRegressor(objective="quantile"),
        xgboost.XGBClassifier(booster="dart"),
        xgboost.XGBClassifier(scale_pos_weight=3),
        xgboost.XGBRegressor(objective="reg:absoluteerror"),
        xgboost.XGBRFClassifier(),
    ],
)
def test_other_boosters_go_into_shards(estimator: Any) -> None:
    model, row = convert_alone(estimator)
    assert row.kind == "ensemble of shards"
    assert model.estimator.get_params() == estimator.get_params()


@pytest.mark.parametrize("kind", [lightgbm.LGBMClassifier, xgboost.XGBClassifier])
def test_a_search_over_a_pipeline_is_converted_and_forgets(kind: type) -> None:
    X = np.random.default_rng(0).normal(size=(150, 3))
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    pipeline = make_pipeline(StandardScaler(), kind(n_estimators=5, max_depth=3))
    name = f"{kind.__name__.lower()}__n_estimators"
    search = GridSearchCV(pipeline, {name: [3, 6]}, cv=2)
    ours, report = letheon.convert(search, return_report=True, random_state=0)
    assert [row.kind for row in report][-2:] == ["dropped", "other algorithm"]
    ours.fit(X, y).forget([0, 1])
    fresh, _ = letheon.convert(search, return_report=True, random_state=0)
    assert fresh.fit(X[2:], y[2:], ids=range(2, 150)).digest() == ours.digest()
