"""Every transformer passes scikit-learn's checks and the public suite of letheon."""

from pathlib import Path
from typing import Any

import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.utils.estimator_checks import parametrize_with_checks

from letheon import audit, checks
from letheon.ledger import Ledger
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
from tests.preprocessing.tables import numbers, target

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


@pytest.mark.parametrize(
    "estimator",
    [
        StandardScaler(random_state=0),
        SimpleImputer(strategy="median", random_state=0),
        OneHotEncoder(),
        TargetEncoder(random_state=0),
        KeyedSample(PCA(1), n_people=10, random_state=0),
    ],
    ids=repr,
)
def test_certificate_and_audit_work(estimator: Any, tmp_path: Path) -> None:
    X, y = numbers(0, 40)[:, [0, 6]], target(0, 40, "2")
    ids = [f"p{row // 2}" for row in range(40)]
    with Ledger.create(tmp_path / "ledger", name="test") as ledger:
        ledger.models.register(clone(estimator).fit(X, y, ids=ids), X, y, ids=ids, name="m")
        ledger.requests.submit(["p3"], model="m", verified=True)
        ledger.run_once(force=True)
        bundle, key = ledger.export(tmp_path / "bundle", tier="auditor"), ledger.public_key
    assert audit.audit(bundle, key=key).verdict == "passed"
