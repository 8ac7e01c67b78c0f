"""Models made of sums pass the checks of scikit-learn and of letheon."""

from collections.abc import Callable
from typing import Any

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
