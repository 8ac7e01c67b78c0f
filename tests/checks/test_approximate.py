"""Approximate methods: honest ones pass, those that forget nothing or half of it do not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from letheon import NaiveUnlearner
from letheon.base import Outcome
from letheon.checks import check_forgetting_estimator, parametrize_with_checks, yield_checks
from letheon.guarantee import Guarantee, MethodFacts
from tests.checks.approximate import NewtonLogistic, NewtonRidge
from tests.checks.catalogue import BATCH, CHEATS, RETRAIN
from tests.checks.cheats import ClaimsTooMuch, IgnoresForget, KeepsTheModel, RemembersOrder

HONEST = [
    NewtonRidge(),
    NewtonRidge(noise=0.02),
    NewtonLogistic(),
    NewtonLogistic(noise=0.02),
]
MOVES = "check_forget_moves_answers_towards_retrain"
LAW = "check_forget_law_close_to_retrain"
INSTEAD = {RETRAIN: MOVES, BATCH: "check_forget_removes_all_rows_of_a_person"}


class _Approximate:
    """A method that calls itself certified."""

    facts: ClassVar[MethodFacts] = replace(
        NaiveUnlearner.facts, exact=False, certificate="empirical"
    )

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(kind="certified", reference="none", epsilon=1.0, delta=1e-5)


def _twin(cheat: type) -> Any:
    """Return the cheat as an approximate method, in this module so that it can be pickled."""
    name = f"Approximately{cheat.__name__}"
    if name not in globals():
        globals()[name] = type(name, (_Approximate, cheat), {"__module__": __name__})
    return globals()[name]


class ClaimsToBeExact(NaiveUnlearner):
    """Declares an approximate method and claims the bytes of a retrain."""

    facts: ClassVar[MethodFacts] = _Approximate.facts


class StepsNowhere(NewtonRidge):
    """Takes the rows out, leaves the coefficients."""

    def _newton(self, rows: Any, coef: Any, classes: Any) -> Any:
        return coef if coef.any() else super()._newton(rows, coef, classes)


class GoesAThirdOfTheWay(NewtonRidge):
    def _commit(self, plan: Any) -> Outcome:
        return super()._commit(plan._replace(coef=(2 * self.coef_ + plan.coef) / 3))


class BringsTheOldModelBack(NewtonRidge):
    """Forgets, and at the next request goes on from the coefficients of the fit."""

    def _commit(self, plan: Any) -> Outcome:
        old = vars(self).setdefault("first_", self.coef_)
        again = old is not self.coef_
        return super()._commit(plan._replace(coef=old) if again else plan)


class GoesTwoThirdsOfTheWay(NewtonRidge):
    def _commit(self, plan: Any) -> Outcome:
        return super()._commit(plan._replace(coef=(self.coef_ + 2 * plan.coef) / 3))


class GoesTheOtherWay(NewtonLogistic):
    def _commit(self, plan: Any) -> Outcome:
        return super()._commit(plan._replace(coef=2 * self.coef_ - plan.coef))


def _id(case: Any) -> str:
    return case if isinstance(case, str) else type(case).__name__


def _check(estimator: Any, name: str) -> Callable[[Any], None]:
    return next(check for check in yield_checks(estimator) if check.__name__ == name)


@parametrize_with_checks(HONEST)
def test_honest_approximation_passes(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "inner",
    [Ridge(), LogisticRegression(), StandardScaler(), GaussianNB(), DecisionTreeClassifier()],
    ids=repr,
)
@pytest.mark.parametrize("kind", [IgnoresForget, KeepsTheModel])
@pytest.mark.parametrize("name", [MOVES, LAW])
def test_forgetting_nothing_is_caught(kind: Any, inner: Any, name: str) -> None:
    cheat = _twin(kind)(inner)
    with pytest.raises(AssertionError, match=r"differ from a retrain|output for the canary"):
        _check(cheat, name)(cheat)


# What only exact methods promise is caught by what all of them do.
TWINS = [
    (_twin(type(cheat))(cheat.estimator), INSTEAD.get(name, name))
    for cheat, name in CHEATS
    if not isinstance(cheat, RemembersOrder | ClaimsTooMuch)
]


@pytest.mark.parametrize(("cheat", "name"), TWINS, ids=_id)
def test_approximate_twin_is_caught(cheat: Any, name: str) -> None:
    with pytest.raises(AssertionError):
        _check(cheat, name)(cheat)


@pytest.mark.parametrize(
    ("cheat", "name"),
    [
        (StepsNowhere(), MOVES),
        (StepsNowhere(), LAW),
        (GoesAThirdOfTheWay(), MOVES),
        (GoesAThirdOfTheWay(noise=0.02), MOVES),
        (BringsTheOldModelBack(), MOVES),
        (GoesTwoThirdsOfTheWay(), LAW),
        (GoesTwoThirdsOfTheWay(noise=0.02), LAW),
        (GoesTheOtherWay(), MOVES),
    ],
    ids=repr,
)
def test_forgetting_in_part_is_caught(cheat: Any, name: str) -> None:
    with pytest.raises(AssertionError):
        _check(cheat, name)(cheat)


@pytest.mark.parametrize("cheat", [cheat for cheat, _ in TWINS], ids=_id)
def test_the_whole_suite_refuses(cheat: Any) -> None:
    with pytest.raises(AssertionError):
        check_forgetting_estimator(cheat)


def test_an_approximate_method_cannot_claim_to_be_exact() -> None:
    with pytest.raises(AssertionError, match="claims to be exact"):
        check_forgetting_estimator(ClaimsToBeExact(Ridge()))


class Hushed(NewtonRidge):
    """Gives nearly the same outputs for any data, so forgetting cannot be detected."""

    def predict(self, X: Any) -> Any:
        return np.arange(len(X)) + 1e-9 * super().predict(X)


def test_a_check_that_cannot_tell_says_so() -> None:
    with pytest.raises(AssertionError, match="cannot decide whether Hushed forgets"):
        _check(Hushed(), MOVES)(Hushed())


@pytest.mark.parametrize("inner", [Normalizer(), DummyClassifier(strategy="uniform")])
def test_answers_that_depend_on_no_row_need_not_move(inner: Any) -> None:
    model = NaiveUnlearner(inner)
    _check(model, MOVES)(model)


def test_majorities_are_moved_by_many_rows() -> None:
    cheat = _twin(KeepsTheModel)(DummyClassifier(strategy="most_frequent"))
    with pytest.raises(AssertionError, match="forgetting 60 influential"):
        _check(cheat, MOVES)(cheat)
