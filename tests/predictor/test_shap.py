"""SHAP accepts the trees of predictors; its values are those of the definition."""

import warnings
from collections.abc import Callable
from functools import cache
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone

from letheon.predictor import Predictor, TreeScores
from tests.predictor.models import FRAME, GAPS, LINEAR, NUMBERS, PIPELINES, TREES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about functions of matplotlib that SHAP uses
    import shap

NAMES = ["forest", "boosting", "regression-boosting", "empty-forest"]
Floats = NDArray[np.float64]


def expect(scores: TreeScores, row: Floats, known: tuple[int, ...]) -> Floats:
    """Return the mean score of the training rows that agree with the known columns of a row."""

    def walk(node: int, tree: int) -> Floats:
        column = scores.columns[node]
        if column < 0:
            value = np.zeros(len(scores.base))
            value[scores.outputs_of(tree)] = scores.values[scores.leaf_numbers[node]]
            return value
        left, right = node + 1, int(scores.rights[node])
        if column in known:
            x = np.float32(row[column])
            is_left = scores.missing_left[node] if np.isnan(x) else x <= scores.thresholds[node]
            return walk(left if is_left else right, tree)
        parts = [(scores.weights[child], walk(child, tree)) for child in (left, right)]
        total = sum(weight for weight, _ in parts)
        return np.asarray(sum(weight * mean for weight, mean in parts) / total)

    sums = [walk(int(scores.begins[tree]), tree) for tree in range(scores.n_trees)]
    return np.asarray(np.ldexp(np.sum(sums, axis=0), scores.exponent) / scores.divisor)


def compute_shapley_values(value: Callable[[tuple[int, ...]], Floats], n: int) -> Floats:
    """Return the Shapley values of n players by their definition."""
    phi = []
    for player in range(n):
        others = [other for other in range(n) if other != player]
        terms = [
            factorial(size)
            * factorial(n - size - 1)
            / factorial(n)
            * (value(tuple(sorted((*group, player)))) - value(group))
            for size in range(n)
            for group in combinations(others, size)
        ]
        phi.append(np.sum(terms, axis=0))
    return np.array(phi)


def explain(predictor: Predictor, X: Floats, background: Any = None) -> tuple[Floats, Floats]:
    """Return the values (rows, columns, scores) of SHAP, and what the scores should sum to."""
    explainer = shap.TreeExplainer(predictor.to_shap(), background)
    values = np.asarray(explainer.shap_values(X))
    values = values if values.ndim == 3 else values[..., None]
    return values, values.sum(axis=1) + explainer.expected_value


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_definition(name: str) -> None:
    template, X, y = TREES[name]
    predictor: Any = clone(template).fit(X, y).predictor()
    values, totals = explain(predictor, GAPS[:4])
    for row, found in zip(GAPS[:4], values, strict=True):
        value = cache(lambda known, row=row: expect(predictor.scores, row, known))
        np.testing.assert_allclose(found, compute_shapley_values(value, 4), atol=1e-6)
    np.testing.assert_allclose(totals, predictor.scores.compute(GAPS[:4]), atol=1e-6)


def test_with_a_background_they_sum_to_the_probabilities() -> None:
    template, X, y = TREES["forest"]
    predictor = clone(template).fit(X, y).predictor()
    _, totals = explain(predictor, NUMBERS[:5], NUMBERS[:20].astype(np.float32))
    np.testing.assert_allclose(totals, predictor.predict_proba(NUMBERS[:5]), atol=1e-6)


def test_the_rows_of_a_pipeline_are_explained_after_its_steps() -> None:
    template, X, y = PIPELINES["forest-pipeline"]
    predictor: Any = clone(template).fit(X, y).predictor()
    rows = predictor.transform(FRAME.head(5))
    _, totals = explain(predictor, rows.toarray())
    np.testing.assert_allclose(totals, predictor.predict_proba(FRAME.head(5)), atol=1e-6)


def test_categories_and_models_without_trees_are_refused() -> None:
    with pytest.raises(TypeError, match="OneHotEncoder"):
        clone(TREES["frame-forest"][0]).fit(FRAME, TREES["frame-forest"][2]).predictor().to_shap()
    model, X, y = LINEAR["ridge"]
    with pytest.raises(TypeError, match="forest or a boosted model"):
        clone(model).fit(X, y).predictor().to_shap()
