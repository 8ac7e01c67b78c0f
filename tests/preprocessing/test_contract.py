"""Every transformer passes scikit-learn's checks and the public suite of letheon."""

from typing import Any

import pytest
from sklearn.decomposition import PCA
from sklearn.utils.estimator_checks import parametrize_with_checks

from letheon import checks
from letheon.preprocessing import (
    KeyedSample,
    OneHotEncoder,
    OrdinalEncoder,
    QuantileBinner,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
    TargetEncoder,
)

TRANSFORMERS = [
    OneHotEncoder(handle_unknown="ignore"),
    OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    QuantileBinner(),
    RobustScaler(),
    SimpleImputer(add_indicator=True),
    SimpleImputer(strategy="median"),
    SimpleImputer(strategy="most_frequent"),
    StandardScaler(),
    TargetEncoder(),
    KeyedSample(PCA(1)),
]


def expect_failures(estimator: Any) -> dict[str, str]:
    """Return the checks that a cross-fitted encoder cannot pass, as in scikit-learn."""
    if not isinstance(estimator, TargetEncoder):
        return {}
    reason = "fit_transform encodes training rows without their own fold"
    return dict.fromkeys(
        ("check_transformer_general", "check_transformer_data_not_an_array"), reason
    )


@parametrize_with_checks(TRANSFORMERS, expected_failed_checks=expect_failures)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@checks.parametrize_with_checks(TRANSFORMERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_contract(estimator: Any, check: Any) -> None:
    check(estimator)
