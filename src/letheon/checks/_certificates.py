"""The check that a certified method leaks no more than its certificate says."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier, is_regressor
from sklearn.utils import get_tags

from letheon.checks._leak import epsilon_lower_bound
from letheon.checks._people import CANARY, CLASSES, People, answers, as_numbers, fit_in_secret

Floats = NDArray[np.float64]

_RUNS = 300
_LEVEL = 1e-4
# Two points tell the two parameters of a linear model with one column and an intercept.
_POINTS = np.array([[1.0], [0.25]])


def check_certificate_bounds_the_leak(estimator: Any) -> None:
    """Models that forgot and fresh ones are no easier to tell apart than epsilon allows.

    On a tiny problem, where one person matters more than all others, `_RUNS` models forget two
    people and as many are fitted without them, all with secret noise. What both say at two points
    gives a lower bound on epsilon at the claimed delta, which must not exceed the claimed one. An
    honest method fails once in ten thousand times at most. A bound from so few runs never exceeds
    3: check a method with an epsilon of about 1.
    """
    people = make_lopsided_people(estimator)
    if fit_in_secret(estimator, people).guarantee_.kind != "certified":
        return
    leaving = [people.names[0], CANARY]
    rest = people.without(leaving)
    forgot, fresh, claims = [], [], []
    for _ in range(_RUNS):
        model = fit_in_secret(estimator, people)
        for person in leaving:
            model.forget([person])
        claims.append(model.guarantee_)
        forgot.append(_published(model))
        fresh.append(_published(fit_in_secret(estimator, rest)))
    if any(claim.kind != "certified" for claim in claims):
        return
    epsilon, delta = (max(getattr(c, name) for c in claims) for name in ("epsilon", "delta"))
    leak = epsilon_lower_bound(np.array(forgot), np.array(fresh), delta=delta, level=_LEVEL)
    assert leak <= epsilon, (
        f"the certificate says epsilon = {epsilon:.3g} at delta = {delta:.3g}, but {_RUNS} models "
        f"that forgot and {_RUNS} fresh ones differ by an epsilon of at least {leak:.3g}"
    )


def make_lopsided_people(estimator: Any) -> People:
    """Return twenty people with one row of one column; the canary's is far out and contrary."""
    x = np.array([*np.linspace(-0.1, 0.1, 19), 1.0])
    if get_tags(estimator).input_tags.positive_only:
        x = np.abs(x)
    ids = np.array([*(f"person-{number:02d}" for number in range(19)), CANARY])
    return People(x[:, None], _contrary_target(estimator, x), ids)


def _contrary_target(estimator: Any, x: Floats) -> NDArray[Any] | None:
    if is_regressor(estimator):
        return np.append(3.0 * x[:-1], -1.0)
    if is_classifier(estimator) or get_tags(estimator).target_tags.required:
        above = np.append(x[:-1] > np.median(x[:-1]), False)
        return np.asarray(np.array(CLASSES)[above.astype(int)])
    return None


def _published(model: Any) -> Floats:
    """Return what an observer sees, as one vector."""
    if model.guarantee_.releases == "labels-only" and is_classifier(model):
        said = model.predict(_POINTS)
    elif hasattr(model, "decision_function"):
        said = model.decision_function(_POINTS)
    else:
        said = answers(model, _POINTS)
    numbers = as_numbers(np.asarray(said)).ravel()
    assert np.isfinite(numbers).all(), "the model answers with numbers that are not finite"
    return numbers
