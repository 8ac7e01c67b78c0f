"""Recommenders pass the checks of scikit-learn and of letheon."""

from collections.abc import Callable
from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from letheon import checks
from letheon.recommend import EASE, ItemKNN

MODELS: list[Any] = [ItemKNN(random_state=0), EASE(random_state=0)]


@parametrize_with_checks(MODELS)
def test_sklearn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@checks.parametrize_with_checks(MODELS)
def test_letheon_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
