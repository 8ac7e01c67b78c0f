"""Every transformer passes scikit-learn's checks and the public suite of letheon."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from letheon import checks
from letheon.preprocessing import OneHotEncoder, OrdinalEncoder

ENCODERS = [
    OneHotEncoder(handle_unknown="ignore"),
    OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
]


@parametrize_with_checks(ENCODERS)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@checks.parametrize_with_checks(ENCODERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_contract(estimator: Any, check: Any) -> None:
    check(estimator)
