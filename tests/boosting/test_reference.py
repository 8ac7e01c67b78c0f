"""All trees and values are those of the definition text, computed by plain loops."""

from typing import Any

import numpy as np
import pytest

from letheon import BoostingClassifier, BoostingRegressor
from tests.boosting.reference import ReferenceBoosting, list_gains, read_trees
from tests.forest.people import pick


def make_rows(rng: np.random.Generator, n: int) -> Any:
    X = rng.normal(size=(n, 4)).round(2)
    X[:, 1] = rng.poisson(0.7, n)
    X[:, 2] = rng.integers(0, 9, n)
    X[rng.random(X.shape) < 0.08] = np.nan
    signal = np.nan_to_num(X[:, 0]) + (X[:, 2] == 3)
    return X, signal + rng.normal(size=n) / 2, rng.integers(0, max(2, n // 2), n)


def make_model(rng: np.random.Generator, loss: str, seed: int) -> Any:
    kind = BoostingClassifier if loss == "log_loss" else BoostingRegressor
    return kind(
        loss=loss,
        n_estimators=pick(rng, 2, 5, 7),
        learning_rate=pick(rng, 0.1, 0.5, 1.0),
        max_leaves=pick(rng, 2, 5, 12),
        min_samples_leaf=pick(rng, 1, 3),
        l2_regularization=pick(rng, 0.0, 0.5, 2.0),
        max_bins=pick(rng, 3, 7, 200),
        colsample=pick(rng, 0.5, 1.0, 1),
        skeleton_people=pick(rng, None, 1, 10, 25),
        n_chains=pick(rng, 1, 2, 3),
        step_bits=pick(rng, 3, 4, 8),
        weight_bits=pick(rng, 0, 2),
        categorical_features=pick(rng, None, [2], [1, 2]),
        random_state=seed,
    )


@pytest.mark.parametrize("loss", ["log_loss", "squared_error", "poisson"])
@pytest.mark.parametrize("seed", range(11))
def test_every_tree_is_that_of_the_definition(loss: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = make_model(rng, loss, seed)
    X, y, ids = make_rows(rng, int(rng.integers(20, 90)) if seed else 400)
    if seed == 0:  # a column of more than 255 values is not held by codes
        X[:, 0] = rng.normal(size=400)
        model.set_params(n_estimators=2, max_leaves=5, max_bins=30, skeleton_people=None)
    if loss == "log_loss":
        y = np.digitize(y, pick(rng, [0.0], [-0.5, 0.6], [9.0]))
        model.set_params(class_weight=pick(rng, None, {1: 3.5, 0: 0.01, 2: 1}))
    elif loss == "poisson":
        y = np.round(np.exp(y))
    y[0] *= pick(rng, 1, 1, 1000)
    weight = rng.integers(1, 5, len(y)) / (4 if model.weight_bits else 1)
    model.fit(X, y, ids=ids, sample_weight=weight)
    steps = weight * 2**model.weight_bits
    factors = {} if loss != "log_loss" else model.class_weight or {}
    if factors:
        steps *= [max(1, round(256 * factors.get(label, 1))) for label in y.tolist()]
    coded = model._prepare_matrix(X)  # categories are numbers
    reference = ReferenceBoosting(model, coded, y, ids, steps, 256 if factors else 1)
    expected_splits, expected_leaves = reference.fit()
    base, splits, leaves = read_trees(model)
    assert base == reference.base
    assert splits == expected_splits
    assert leaves == expected_leaves
    gains = [0.0] * 4
    for tree, own in zip(reference.trees, leaves, strict=True):
        list_gains(tree, iter(own), reference.l2, gains)
    np.testing.assert_allclose(model.feature_importances_, np.array(gains) / (sum(gains) or 1.0))
