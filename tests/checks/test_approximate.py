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
from tests.checks.cheats import IgnoresForget, KeepsTheModel

HONEST = [
    NewtonRidge(),
    NewtonRidge(noise=0.02),
    NewtonLogistic(),
    NewtonLogistic(noise=0.02),
]
MOVES = "check_forget_moves_answers_towards_retrain"
LAW = "check_forget_law_close_to_retrain"


class _Approximate(NaiveUnlearner):
    """A method that calls itself certified."""

    facts: ClassVar[MethodFacts] = replace(NaiveUnlearner.facts, exact=False)

    def _claim(self) -> Guarantee:
        return Guarantee(kind="certified", reference="none", epsilon=1.0, delta=1e-5)


class ApproximatelyIgnores(_Approximate, IgnoresForget):
    pass


class ApproximatelyKeeps(_Approximate, KeepsTheModel):
    pass


class StepsNowhere(NewtonRidge):
    """Takes the rows out, leaves the coefficients."""

    def _newton(self, rows: Any, coef: Any, classes: Any) -> Any:
        return coef if coef.any() else super()._newton(rows, coef, classes)


class GoesAThirdOfTheWay(NewtonRidge):
    def _commit(self, plan: Any) -> Outcome:
        return super()._commit(plan._replace(coef=(2 * self.coef_ + plan.coef) / 3))


class GoesTwoThirdsOfTheWay(NewtonRidge):
    def _commit(self, plan: Any) -> Outcome:
        return super()._commit(plan._replace(coef=(self.coef_ + 2 * plan.coef) / 3))


class GoesTheOtherWay(NewtonLogistic):
    def _commit(self, plan: Any) -> Outcome:
        return super()._commit(plan._replace(coef=2 * self.coef_ - plan.coef))


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
@pytest.mark.parametrize("cheat", [ApproximatelyIgnores, ApproximatelyKeeps])
@pytest.mark.parametrize("name", [MOVES, LAW])
def test_forgetting_nothing_is_caught(cheat: Any, inner: Any, name: str) -> None:
    with pytest.raises(AssertionError, match=r"away from those of a retrain|about the canary"):
        _check(cheat(inner), name)(cheat(inner))


@pytest.mark.parametrize(
    ("cheat", "name"),
    [
        (StepsNowhere(), MOVES),
        (StepsNowhere(), LAW),
        (GoesAThirdOfTheWay(), MOVES),
        (GoesAThirdOfTheWay(noise=0.02), MOVES),
        (GoesTwoThirdsOfTheWay(), LAW),
        (GoesTwoThirdsOfTheWay(noise=0.02), LAW),
        (GoesTheOtherWay(), MOVES),
    ],
    ids=repr,
)
def test_forgetting_in_part_is_caught(cheat: Any, name: str) -> None:
    with pytest.raises(AssertionError):
        _check(cheat, name)(cheat)


@pytest.mark.parametrize("cheat", [ApproximatelyIgnores(Ridge()), ApproximatelyKeeps(Ridge())])
def test_the_whole_suite_refuses(cheat: Any) -> None:
    with pytest.raises(AssertionError):
        check_forgetting_estimator(cheat)


class Hushed(NewtonRidge):
    """Says nearly the same whatever it learned, so nobody can tell whether it forgets."""

    def predict(self, X: Any) -> Any:
        return np.arange(len(X)) + 1e-9 * super().predict(X)


def test_a_check_that_cannot_tell_says_so() -> None:
    with pytest.raises(AssertionError, match="cannot tell whether Hushed forgets"):
        _check(Hushed(), MOVES)(Hushed())


@pytest.mark.parametrize("inner", [Normalizer(), DummyClassifier(strategy="uniform")])
def test_answers_that_depend_on_no_row_need_not_move(inner: Any) -> None:
    model = NaiveUnlearner(inner)
    _check(model, MOVES)(model)


def test_majorities_are_moved_by_many_rows() -> None:
    cheat = ApproximatelyKeeps(DummyClassifier(strategy="most_frequent"))
    with pytest.raises(AssertionError, match="forgetting 60 influential"):
        _check(cheat, MOVES)(cheat)
