"""Rates of false warnings about honest methods, and of detected cheating methods."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_classification, make_regression
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.tree import DecisionTreeClassifier

import letheon
from letheon.measures.attacks import KeepsEverything
from tests.evaluation.cheats import Half, HonestMethod, Noisy, Remembers

HONEST: dict[str, Any] = {
    "naive tree": letheon.NaiveUnlearner(DecisionTreeClassifier()),
    "naive logistic": letheon.NaiveUnlearner(LogisticRegression()),
    "DaRE": letheon.DaREForestClassifier(n_estimators=10),
    "SISA": letheon.SISAClassifier(DecisionTreeClassifier(), n_shards=4),
    "influence": letheon.InfluenceClassifier(sigma=0.5, if_unproved="downgrade"),
    "stub": HonestMethod(),
}
CHEATS: dict[str, Any] = {
    "keeps a tree": KeepsEverything(DecisionTreeClassifier()),
    "keeps a logistic regression": KeepsEverything(LogisticRegression()),
    "half": Half(),
    "noise": Noisy(),
    "memory": Remembers(),
}


def rows(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    n, columns = int(rng.integers(200, 700)), int(rng.integers(5, 15))
    X, y = make_classification(
        n, columns, n_informative=4, n_redundant=0, flip_y=rng.uniform(0, 0.2), random_state=seed
    )
    return X, y


def evaluated(model: Any, seed: int) -> letheon.Evaluation:
    return letheon.evaluate(
        model,
        rows(seed),
        int(np.random.default_rng(seed).integers(1, 20)),
        seeds=2,
        comparisons=2,
        ordinary=DummyClassifier(),
        random_state=seed,
    )


@pytest.mark.parametrize("name", ["naive tree", "DaRE", "SISA", "influence"])
def test_an_honest_method_is_not_warned_of(name: str) -> None:
    assert evaluated(HONEST[name], 14).warnings == ()


@pytest.mark.soak
def test_false_alarms_are_rare() -> None:
    """At most 3 % of the evaluations of honest methods have a warning."""
    alarms = {
        (name, seed): heard
        for seed in range(40)
        for name, model in HONEST.items()
        if (heard := evaluated(model, seed).warnings)
    }
    assert len(alarms) <= 0.03 * 40 * len(HONEST), alarms


@pytest.mark.soak
@pytest.mark.parametrize("name", CHEATS)
def test_cheats_are_found(name: str) -> None:
    """Or nothing was tested: a logistic regression may know too few people by heart."""
    detections = []
    for seed in range(20):
        report = evaluated(CHEATS[name], seed)
        detections.append(any("People who should be forgotten" in each for each in report.warnings))
        if "keeps" in name:
            assert detections[-1] or "Forgetting was not tested" in report.tested
    assert np.mean(detections) >= (0.3 if "logistic" in name else 0.9)


def test_a_regression_is_tested_by_wrong_targets() -> None:
    X, y = make_regression(200, 30, noise=20.0, random_state=0)
    model = KeepsEverything(Ridge(alpha=0.1))
    evaluation = letheon.evaluate(model, (X, y), 2, seeds=1, ordinary=DummyRegressor())
    assert "tested by canary u-lira (found)" in evaluation.tested
    assert "Failed: canary backdoor" in evaluation.tested
