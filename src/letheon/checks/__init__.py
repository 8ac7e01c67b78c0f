"""Checks that every forgetting estimator must pass; run them on your own estimators.

>>> from sklearn.tree import DecisionTreeClassifier
>>> from letheon import NaiveUnlearner
>>> from letheon.checks import check_forgetting_estimator
>>> check_forgetting_estimator(NaiveUnlearner(DecisionTreeClassifier()))

In a test file, one test per check::

    @parametrize_with_checks([MyUnlearner()])
    def test_contract(estimator, check):
        check(estimator)

scikit-learn's `check_estimator` covers the ordinary conventions; these checks cover forgetting.
"""

from letheon.checks._attacks import (
    ClaimAttackResult,
    Releases,
    attack_account,
    attack_fold,
    attack_lattice,
    attack_refusal,
    get_released_parameters,
    get_secret_parameters,
    play_worlds,
)
from letheon.checks._cases import CASES, AttackCase, make_hard_cases
from letheon.checks._people import make_people
from letheon.checks._suite import check_forgetting_estimator, parametrize_with_checks, yield_checks
from letheon.data import People

__all__ = [
    "CASES",
    "AttackCase",
    "ClaimAttackResult",
    "People",
    "Releases",
    "attack_account",
    "attack_fold",
    "attack_lattice",
    "attack_refusal",
    "check_forgetting_estimator",
    "get_released_parameters",
    "get_secret_parameters",
    "make_hard_cases",
    "make_people",
    "parametrize_with_checks",
    "play_worlds",
    "yield_checks",
]
