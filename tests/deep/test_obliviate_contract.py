"""DeepObliviate keeps the contract of forgetting estimators and scikit-learn's conventions."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks as sklearn_checks

from letheon.checks import parametrize_with_checks
from letheon.deep._nets import MLP
from tests.deep.obliviate_reference import Still, make

# Small steps, so that people of all blocks matter; and requests stop before the end.
STOPPING: dict[str, Any] = {
    "module": Still(),
    "n_blocks": 6,
    "epochs": 2,
    "batch_size": 64,
    "learning_rate": 0.02,
    "epsilon": 1e9,
}


@parametrize_with_checks([make(**STOPPING)])
def test_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@sklearn_checks([make(module=MLP(widths=(8,)), n_blocks=2, epochs=12, batch_size=32)])
@pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)
