"""Certified methods: honest ones pass, those that leak, repeat or show their noise do not."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from letheon.checks import parametrize_with_checks, yield_checks
from letheon.checks._effect import make_lopsided_people
from letheon.checks._people import CANARY, fit, fit_with_secret_noise, make_people, refit
from letheon.checks._residue import _capture_output, _contains_secret
from letheon.noise import SecretArray
from tests.checks import certified
from tests.checks.approximate import NewtonRidge
from tests.checks.catalogue import AGGREGATES, DIGEST
from tests.checks.certified import LazyClassifier, LazyLabels, LazyRidge

LEAK = "check_certificate_bounds_the_leak"
SECRET = "check_noise_stays_secret"
HONEST_CLAIM = "check_guarantee_is_honest"
FILES = "check_save_load_then_forget"
CHEATS = [
    (certified.ForgetsTheNoise(), LEAK),
    (certified.WhispersAfterwards(), LEAK),
    (certified.WhispersAlways(), LEAK),
    (certified.KeepsTheInfluence(), LEAK),
    (certified.KeepsTheLabels(), LEAK),
    (certified.StepsTheWrongWay(), LEAK),
    (certified.RepeatsItsNoise(), SECRET),
    (certified.RepeatsItsNoiseWithoutAClaim(), SECRET),
    (certified.CertifiesASeed(), SECRET),
    (certified.LogsItsNoise(), SECRET),
    (certified.PrintsItsNorm(), SECRET),
    (certified.ShowsItsNoise(), SECRET),
    (certified.ExplainsItsClaim(), SECRET),
    (certified.CountsItsNoise(), SECRET),
    (certified.OverdrawsItsBudget(), HONEST_CLAIM),
    (certified.LosesItsNoise(), FILES),
    (certified.LosesItsSecret(), DIGEST),
    (certified.SealsAnAggregate(), AGGREGATES),
]


def _check(estimator: Any, name: str) -> Callable[[Any], None]:
    return next(check for check in yield_checks(estimator) if check.__name__ == name)


def _name(case: Any) -> str:
    return case if isinstance(case, str) else type(case).__name__


@parametrize_with_checks(
    [
        LazyRidge(),
        LazyRidge(sigma=0.0),
        LazyRidge(sigma=0.2, epsilon=0.5),
        LazyClassifier(),
        LazyLabels(),
    ]
)
def test_honest_certificate_passes(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(("cheat", "name"), CHEATS, ids=_name)
def test_cheat_is_caught(cheat: Any, name: str) -> None:
    with pytest.raises(AssertionError):
        _check(cheat, name)(cheat)


@pytest.mark.soak
@pytest.mark.parametrize("epsilon", [0.25, 1.0])
def test_an_honest_certificate_is_never_refused(epsilon: float) -> None:
    for _ in range(50):
        _check(LazyRidge(epsilon=epsilon), LEAK)(LazyRidge(epsilon=epsilon))


@pytest.mark.soak
@pytest.mark.parametrize("cheat", [cheat for cheat, name in CHEATS if name == LEAK], ids=_name)
def test_a_leak_is_found_every_time(cheat: Any) -> None:
    for _ in range(20):
        with pytest.raises(AssertionError, match="the certificate says epsilon = 1 at"):
            _check(cheat, LEAK)(cheat)


def test_only_methods_with_noise_are_asked_for_its_secrecy() -> None:
    names = {check.__name__ for check in yield_checks(NewtonRidge())}
    assert SECRET not in names
    assert LEAK in names
    assert {SECRET, LEAK} <= {check.__name__ for check in yield_checks(LazyRidge())}


def test_the_page_lists_the_checks_of_noise() -> None:
    page = Path(__file__).parents[2] / "docs" / "checks.md"
    text = page.read_text(encoding="utf-8")
    missing = [c.__name__ for c in yield_checks(LazyClassifier()) if f"`{c.__name__}`" not in text]
    assert missing == []


def test_seeds_of_the_checks_make_noise_repeatable() -> None:
    people = make_people(LazyRidge())
    one, two, other = (fit(LazyRidge(), people, seed=seed) for seed in (4, 4, 5))
    assert one.noise_seed == one.seed_ == 4
    assert one.digest() == two.digest()
    assert not np.array_equal(one.published_[0], other.published_[0])


def test_a_refit_repeats_the_noise_seed_and_not_the_seed() -> None:
    people = make_people(LazyRidge())
    model = LazyRidge(noise_seed=7, random_state=3).fit(people.X, people.y, ids=people.ids)
    again = refit(model, people)
    assert (again.noise_seed, again.seed_) == (7, 3)
    assert again.digest() == model.digest()


def test_secret_fits_ask_the_system() -> None:
    people = make_people(LazyRidge())
    model = fit_with_secret_noise(LazyRidge(noise_seed=7), people)
    assert model.noise_seed is None
    assert model.guarantee_.kind == "certified"


@pytest.mark.parametrize("estimator", [LazyRidge(sigma=0.0), LazyClassifier(sigma=0.0)], ids=_name)
def test_the_canary_outweighs_all_other_people(estimator: Any) -> None:
    people = make_lopsided_people(estimator)
    point = np.array([[1.0]])
    before = fit(estimator, people)
    after = refit(before, people.without([CANARY]))
    if isinstance(estimator, LazyClassifier):
        assert before.predict(point) != after.predict(point)
    else:
        assert before.predict(point)[0] < 0 < after.predict(point)[0]


SHOWN = [
    ("sigma=0.12345678", True),
    ("[-1.2345678e-01  4.]", True),
    ("0.1234568", True),
    ("0.123457", False),
    ("0.12345600", False),
    ("norm 4.00190465", True),
    ("4.0 4.0000000", False),
    (np.float64(0.12345678).tobytes().hex().upper(), True),
    ("", False),
]


@pytest.mark.parametrize(("text", "shown"), SHOWN)
def test_a_number_is_recognised_by_seven_digits(text: str, shown: bool) -> None:
    assert _contains_secret(text, np.array([0.12345678, 4.0])) is shown


def test_everything_said_meanwhile_is_heard() -> None:
    quiet = logging.getLogger("tests.quiet")
    quiet.setLevel(logging.ERROR)
    quiet.propagate = False
    factory = logging.getLogRecordFactory()  # other libraries set their own
    with _capture_output(LazyRidge()) as heard:
        quiet.debug("told %d", 17)
        print("said")  # noqa: T201
    assert heard["a log record"] == "told 17 (17,)"
    assert heard["the output"] == "said\n"
    assert quiet.level == logging.ERROR
    assert logging.getLogRecordFactory() is factory


def test_a_seal_does_not_hide_a_value_from_the_checks() -> None:
    from letheon.checks._walk import iter_leaves

    sealed = SecretArray(np.array([0.5, 2.0]))
    (leaf,) = iter_leaves([sealed])
    assert leaf.path == "list[0][secret]"
    assert leaf.put is not None
    leaf.put(np.array([1.0, 1.0]))
    assert sealed.open().tolist() == [1.0, 1.0]
    leaf.put(leaf.value)
    assert sealed.open().tolist() == [0.5, 2.0]
