"""Models made of sums pass the checks of scikit-learn and of letheon."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from letheon import checks
from letheon.sums import (
    PCA,
    GaussianNB,
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
    Ridge,
    RidgeClassifier,
)

MODELS: list[Any] = [
    Ridge(random_state=0),
    RidgeClassifier(random_state=0),
    LinearDiscriminantAnalysis(random_state=0),
    QuadraticDiscriminantAnalysis(random_state=0),
    GaussianNB(random_state=0),
    PCA(random_state=0),
]


EXCUSED = (
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weight_equivalence_on_sparse_data",
)


def list_excused(estimator: Any) -> dict[str, str]:
    """Return checks that ask for more than 20 bits of precision."""
    reason = "sqrt(weight) * row is rounded to a grid of 2**-20 deviations"
    is_ridge = isinstance(estimator, Ridge | RidgeClassifier)
    return dict.fromkeys(EXCUSED, reason) if is_ridge else {}


@parametrize_with_checks(MODELS, expected_failed_checks=list_excused)
def test_sklearn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@checks.parametrize_with_checks(MODELS)
def test_letheon_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("columns", [["b", "a"], ["a", "z"], ["a"]])
def test_learn_refuses_other_columns(model: Any, columns: list[str]) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["a", "b"])
    y = np.arange(20) % 2
    model = clone(model).fit(frame, y)
    before = model.digest()
    with pytest.raises(ValueError, match="feature names should match"):
        model.learn(frame.assign(z=1.0)[columns][:2], y[:2], ids=[20, 21])
    assert model.digest() == before
    assert model.learn(frame[:2], y[:2], ids=[20, 21]).n_rows_ == 22
