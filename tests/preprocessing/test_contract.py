"""Every transformer passes scikit-learn's checks and the public suite of letheon."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from letheon import checks
from letheon.preprocessing import (
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
)

TRANSFORMERS = [
    OneHotEncoder(handle_unknown="ignore"),
    OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    RobustScaler(),
    SimpleImputer(add_indicator=True),
    SimpleImputer(strategy="median"),
    SimpleImputer(strategy="most_frequent"),
    StandardScaler(),
]


@parametrize_with_checks(TRANSFORMERS)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@checks.parametrize_with_checks(TRANSFORMERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_contract(estimator: Any, check: Any) -> None:
    check(estimator)
