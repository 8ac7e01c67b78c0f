"""Checks of effect, for methods of every kind: after `forget` the model answers as a retrain does.

The canary of these checks is a person whose rows contradict everybody else's: far out, with the
label or target that the others would never give there. How many rows it takes for a retrain
without them to answer clearly differently depends on the estimator, so several numbers are tried.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ks_2samp
from sklearn.base import is_classifier
from sklearn.utils import get_tags

from letheon.checks._leak import epsilon_lower_bound
from letheon.checks._people import (
    CANARY,
    CLASSES,
    answers,
    as_numbers,
    fit,
    fit_in_secret,
    forget_each,
    make_people,
    refit,
    target_of,
)
from letheon.data import People

Floats = NDArray[np.float64]

_NUMBERS_OF_ROWS = (1, 4, 60)
_CLEAR = 0.02
_TOLERANCE = 0.05
_LEVEL = 1e-4
_SEEDS = range(20)
_AVERAGED_SEEDS = range(8)
_RUNS = 300
# Two points tell the two parameters of a linear model with one column and an intercept.
_POINTS = np.array([[1.0], [0.25]])


class _Effect(NamedTuple):
    """How far answers had to move, how far they still are from a retrain's, and what is noise."""

    to_move: float
    left: float
    noise: float


def check_forget_moves_answers_towards_retrain(estimator: Any) -> None:
    """Forgetting an influential person brings the answers at least half the way to a retrain's."""
    n_rows = _clear_number_of_rows(estimator)
    if n_rows is None:
        return
    people = make_contrary_people(estimator, n_rows)
    # A second request must not bring back what the first took out.
    for leaving in ([CANARY], [CANARY, people.names[0]]):
        effect = _effect(estimator, people, leaving)
        assert effect.left <= 0.5 * effect.to_move, (
            f"forgetting {n_rows} influential row(s) in {len(leaving)} request(s) left the answers "
            f"{effect.left:.3g} away from those of a retrain; they were {effect.to_move:.3g} away "
            "before"
        )


def check_forget_law_close_to_retrain(estimator: Any) -> None:
    """Over many seeds, models that forgot and retrained models answer alike on the canary.

    A two-sample Kolmogorov-Smirnov test at level 1e-4. A gap of less than a few per cent of the
    answer passes: an approximate method with hardly any randomness need not be exact.
    """
    n_rows = _clear_number_of_rows(estimator)
    if n_rows is None:
        return
    people = make_contrary_people(estimator, n_rows)
    rest, canary = people.without([CANARY]), people.of([CANARY])
    before, after, retrained = [], [], []
    for seed in _SEEDS:
        model = fit(estimator, people, seed=seed)
        before.append(_statistic(model, canary))
        model.forget([CANARY])
        after.append(_statistic(model, canary))
        retrained.append(_statistic(fit(estimator, rest, seed=seed + len(_SEEDS)), canary))
    gap = abs(np.median(after) - np.median(retrained))
    scale = max(abs(np.median(before)), abs(np.median(retrained)))
    if gap <= _TOLERANCE * scale:
        return
    p_value = float(ks_2samp(after, retrained).pvalue)
    assert p_value >= _LEVEL, (
        f"over {len(_SEEDS)} seeds, models that forgot say {np.median(after):.4g} about the canary "
        f"and retrained ones {np.median(retrained):.4g} (medians; p = {p_value:.1g})"
    )


def make_contrary_people(estimator: Any, n_rows: int) -> People:
    """Return people like `make_people`'s with a canary of `n_rows` moderate, contrary rows."""
    others = make_people(estimator).without([CANARY])
    rng = np.random.default_rng(n_rows)
    X = np.vstack([others.X, 4.0 + rng.normal(scale=0.25, size=(n_rows, others.X.shape[1]))])
    ids = np.append(others.ids, [CANARY] * n_rows)
    if others.y is None:
        return People(X, None, ids)
    contrary = CLASSES[0] if others.y.dtype.kind == "U" else -8.0
    return People(X, np.append(others.y, [contrary] * n_rows), ids)


def _clear_number_of_rows(estimator: Any) -> int | None:
    """Return how many contrary rows make a retrain answer clearly differently.

    None if the answers do not depend on the training rows at all; an error if they do, but these
    checks cannot tell a model that forgot from one that did not.
    """
    for n_rows in _NUMBERS_OF_ROWS:
        effect = _effect(estimator, make_contrary_people(estimator, n_rows), [CANARY])
        if effect.to_move > effect.noise:
            return n_rows
    # Two models of quite different people give the same answers.
    people, others = make_people(estimator), make_people(estimator, seed=1)
    one, two = (_numbers(fit(estimator, data), people.X) for data in (people, others))
    assert np.array_equal(one, two), (
        f"this check cannot tell whether {type(estimator).__name__} forgets: a retrain without "
        f"{_NUMBERS_OF_ROWS[-1]} contrary rows gives nearly the same answers, or they are hidden "
        "by noise; check it with settings under which single people matter more"
    )
    return None


def _effect(estimator: Any, people: People, leaving: list[str]) -> _Effect:
    rest, seeds = people.without(leaving), range(1)
    # One seed where answers do not depend on it, or where no two models may differ.
    if not estimator.facts.exact:
        one, two = (_numbers(fit(estimator, people, seed=seed), people.X) for seed in (0, 1))
        seeds = range(1) if np.array_equal(one, two) else _AVERAGED_SEEDS
    before, after, retrained = [], [], []
    for seed in seeds:
        model = fit(estimator, people, seed=seed)
        before.append(_numbers(model, people.X))
        after.append(_numbers(forget_each(model, leaving), people.X))
        retrained.append(_numbers(refit(model, rest), people.X))
    half, goal = len(retrained) // 2, np.mean(retrained, axis=0)
    noise = _distance(retrained[:half], np.mean(retrained[half:], axis=0)) if half else 0.0
    spread = float(np.abs(goal - goal.mean(axis=0)).mean())
    least = max(_CLEAR * spread, 4 * noise, 1e-9)
    return _Effect(_distance(before, goal), _distance(after, goal), least)


def _numbers(model: Any, X: NDArray[Any]) -> Floats:
    return as_numbers(answers(model, X))


def _statistic(model: Any, canary: People) -> float:
    """Return the mean answer on the canary's rows: of a classifier, the share of their label."""
    said = _numbers(model, canary.X)
    if canary.y is None or not is_classifier(model):
        return float(said.mean())
    held = model.classes_.tolist() if said.shape[1] == len(model.classes_) else list(CLASSES)
    return float(said[:, held.index(canary.y[0])].mean())


def _distance(several: list[Floats], goal: Floats) -> float:
    """Return how far the mean of several answers is from others."""
    mean = np.mean(several, axis=0)
    return float(np.abs(mean - goal).mean()) if mean.shape == goal.shape else np.inf


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
        model = forget_each(fit_in_secret(estimator, people), leaving)
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
    above = np.append(x[:-1] > np.median(x[:-1]), False).astype(int)
    return People(x[:, None], target_of(estimator, np.append(3.0 * x[:-1], -1.0), above), ids)


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
