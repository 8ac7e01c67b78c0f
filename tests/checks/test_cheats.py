"""The test of the tests: estimators that cheat on purpose, every one of which must be caught."""

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from letheon import NaiveUnlearner
from letheon.checks import check_forgetting_estimator, yield_checks
from tests.checks import cheats, hoarders
from tests.checks.catalogue import AGGREGATES, BYTES, CHEATS, READER, SETTINGS, TRACE
from tests.checks.hoarders import ApproximateHoarder, Hoarder

IN_BYTES = {
    "Row",
    "Id",
    "Numbers",
    "Text",
    "OneNumber",
    "SinglePrecision",
    "Hexadecimal",
    "Targets",
}
HOARDERS = [
    kind(Ridge())
    for kind in vars(hoarders).values()
    if isinstance(kind, type)
    and issubclass(kind, Hoarder)
    and kind not in (Hoarder, ApproximateHoarder)
]
# Both models forgot the same id, so only its bytes give it away.
TRACES = [h for h in HOARDERS if h.facts.exact and not isinstance(h, hoarders.KeepsTheId)]
# These mix a row with others beyond recognition; only a second model tells.
MIXTURES = (
    hoarders.KeepsTheGradient,
    hoarders.KeepsTheNorm,
    hoarders.KeepsARank,
    hoarders.KeepsALoss,
)
PLAIN = [hoarder for hoarder in HOARDERS if not isinstance(hoarder, MIXTURES)]


def _name(cheat: Any) -> str:
    return type(cheat).__name__


def _check(cheat: Any, name: str) -> Callable[[Any], None]:
    return next(check for check in yield_checks(cheat) if check.__name__ == name)


@pytest.mark.parametrize(("cheat", "name"), CHEATS, ids=_name)
def test_cheat_is_caught(cheat: Any, name: str) -> None:
    with pytest.raises(AssertionError):
        _check(cheat, name)(cheat)


@pytest.mark.parametrize("cheat", [cheat for cheat, _ in CHEATS], ids=_name)
def test_the_whole_suite_refuses_every_cheat(cheat: Any) -> None:
    with pytest.raises(AssertionError):
        check_forgetting_estimator(cheat)


@pytest.mark.parametrize("cheat", TRACES, ids=_name)
def test_whatever_an_exact_model_keeps_is_a_trace(cheat: Any) -> None:
    with pytest.raises(
        AssertionError, match=r"attic_.* depends on the values of the forgotten row"
    ):
        _check(cheat, TRACE)(cheat)


@pytest.mark.parametrize("cheat", PLAIN, ids=_name)
def test_hoards_are_found_without_a_second_model(cheat: Any) -> None:
    kind = _name(cheat).removeprefix("Approximately").removeprefix("KeepsThe").removeprefix("Keeps")
    with pytest.raises(AssertionError, match="forgotten"):
        _check(cheat, BYTES if kind in IN_BYTES else AGGREGATES)(cheat)


def test_hoards_of_a_classifier_are_found() -> None:
    cheat = hoarders.KeepsTheTargets(LogisticRegression(max_iter=1000))
    with pytest.raises(AssertionError, match=r"attic_"):
        _check(cheat, TRACE)(cheat)


@pytest.mark.parametrize("cheat", [cheats.ShowsAnEmptyModel, cheats.ShowsHalfAModel], ids=repr)
def test_a_torn_model_is_seen_every_time(cheat: Any) -> None:
    caught = 0
    for _ in range(20):
        try:
            _check(cheat(Ridge()), READER)(cheat(Ridge()))
        except AssertionError:
            caught += 1
    assert caught == 20


def test_settings_set_back_are_accepted() -> None:
    for inner in (Ridge(), StandardScaler(), DecisionTreeClassifier()):
        _check(NaiveUnlearner(inner), SETTINGS)(NaiveUnlearner(inner))
