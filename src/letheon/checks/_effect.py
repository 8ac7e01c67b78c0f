"""Checks of effect, for all methods: after `forget` the model predicts like a retrained model.

The canary of these checks is a person with rows that contradict all others: outliers with a
different label or target. How many such rows are needed to change the predictions clearly depends
on the estimator, so several numbers are tried.
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
    as_numbers,
    fit,
    fit_with_secret_noise,
    forget_each,
    get_outputs,
    make_people,
    make_target,
    refit,
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
# Two points determine a linear model with one column and an intercept.
_POINTS = np.array([[1.0], [0.25]])


class _Effect(NamedTuple):
    """Distance of outputs from those of a retrained model, before and after forgetting.

    `noise` is the smallest distance that counts as clear.
    """

    to_move: float
    left: float
    noise: float


def check_forget_moves_answers_towards_retrain(estimator: Any) -> None:
    """Check that forgetting moves outputs at least halfway to those of a retrained model.

    The forgotten person is influential: the rows contradict all others.
    """
    n_rows = _clear_number_of_rows(estimator)
    if n_rows is None:
        return
    people = make_contrary_people(estimator, n_rows)
    # A second request must not undo the first.
    for leaving in ([CANARY], [CANARY, people.unique_ids[0]]):
        effect = _measure_effect(estimator, people, leaving)
        assert effect.left <= 0.5 * effect.to_move, (
            f"after forgetting {n_rows} influential row(s) in {len(leaving)} request(s), the "
            f"outputs differ from a retrain by {effect.left:.3g}; before, they differed by "
            f"{effect.to_move:.3g}"
        )


def check_forget_law_close_to_retrain(estimator: Any) -> None:
    """Check that models that forgot give the same outputs for the canary as retrained models.

    The outputs over many seeds are compared with a two-sample Kolmogorov-Smirnov test at level
    1e-4. A difference of less than a few per cent passes, because an approximate method with little
    randomness need not be exact.
    """
    n_rows = _clear_number_of_rows(estimator)
    if n_rows is None:
        return
    people = make_contrary_people(estimator, n_rows)
    rest, canary = people.without([CANARY]), people.rows_of([CANARY])
    before, after, retrained = [], [], []
    for seed in _SEEDS:
        model = fit(estimator, people, seed=seed)
        before.append(_compute_statistic(model, canary))
        model.forget([CANARY])
        after.append(_compute_statistic(model, canary))
        retrained.append(_compute_statistic(fit(estimator, rest, seed=seed + len(_SEEDS)), canary))
    gap = abs(np.median(after) - np.median(retrained))
    scale = max(abs(np.median(before)), abs(np.median(retrained)))
    if gap <= _TOLERANCE * scale:
        return
    p_value = float(ks_2samp(after, retrained).pvalue)
    assert p_value >= _LEVEL, (
        f"over {len(_SEEDS)} seeds, the median output for the canary is {np.median(after):.4g} for "
        f"models that forgot and {np.median(retrained):.4g} for retrained ones (p = {p_value:.1g})"
    )


def make_contrary_people(estimator: Any, n_rows: int) -> People:
    """Return people as in `make_people`; the `n_rows` rows of the canary contradict the others."""
    others = make_people(estimator).without([CANARY])
    rng = np.random.default_rng(n_rows)
    X = np.vstack([others.X, 4.0 + rng.normal(scale=0.25, size=(n_rows, others.X.shape[1]))])
    ids = np.append(others.ids, [CANARY] * n_rows)
    if others.y is None:
        return People(X, None, ids)
    contrary = CLASSES[0] if others.y.dtype.kind == "U" else -8.0
    return People(X, np.append(others.y, [contrary] * n_rows), ids)


def _clear_number_of_rows(estimator: Any) -> int | None:
    """Return how many contrary rows are needed to change the outputs clearly.

    Return None if the outputs do not depend on the training rows. Raise `AssertionError` if they
    do, but no tried number changes them clearly: the checks could not detect a model that did not
    forget.
    """
    for n_rows in _NUMBERS_OF_ROWS:
        effect = _measure_effect(estimator, make_contrary_people(estimator, n_rows), [CANARY])
        if effect.to_move > effect.noise:
            return n_rows
    # Check whether models of very different people give the same outputs.
    people, others = make_people(estimator), make_people(estimator, seed=1)
    first, second = (_get_numbers(fit(estimator, data), people.X) for data in (people, others))
    assert np.array_equal(first, second), (
        f"this check cannot decide whether {type(estimator).__name__} forgets: a retrain without "
        f"{_NUMBERS_OF_ROWS[-1]} contrary rows gives nearly the same outputs, or noise hides the "
        "difference; use settings with more influence of single people"
    )
    return None


def _measure_effect(estimator: Any, people: People, leaving: list[str]) -> _Effect:
    rest, seeds = people.without(leaving), range(1)
    # One seed suffices if outputs do not depend on it, or if the method is exact.
    if not estimator.facts.exact:
        first, second = (
            _get_numbers(fit(estimator, people, seed=seed), people.X) for seed in (0, 1)
        )
        seeds = range(1) if np.array_equal(first, second) else _AVERAGED_SEEDS
    before, after, retrained = [], [], []
    for seed in seeds:
        model = fit(estimator, people, seed=seed)
        before.append(_get_numbers(model, people.X))
        after.append(_get_numbers(forget_each(model, leaving), people.X))
        retrained.append(_get_numbers(refit(model, rest), people.X))
    half, goal = len(retrained) // 2, np.mean(retrained, axis=0)
    noise = _compute_distance(retrained[:half], np.mean(retrained[half:], axis=0)) if half else 0.0
    spread = float(np.abs(goal - goal.mean(axis=0)).mean())
    least = max(_CLEAR * spread, 4 * noise, 1e-9)
    return _Effect(_compute_distance(before, goal), _compute_distance(after, goal), least)


def _get_numbers(model: Any, X: NDArray[Any]) -> Floats:
    return as_numbers(get_outputs(model, X))


def _compute_statistic(model: Any, canary: People) -> float:
    """Return the mean output for the canary's rows; for a classifier, that of the true label."""
    outputs = _get_numbers(model, canary.X)
    if canary.y is None or not is_classifier(model):
        return float(outputs.mean())
    classes = model.classes_.tolist() if outputs.shape[1] == len(model.classes_) else list(CLASSES)
    return float(outputs[:, classes.index(canary.y[0])].mean())


def _compute_distance(several: list[Floats], goal: Floats) -> float:
    """Return the mean absolute difference between the mean of several outputs and `goal`."""
    mean = np.mean(several, axis=0)
    return float(np.abs(mean - goal).mean()) if mean.shape == goal.shape else np.inf


def check_certificate_bounds_the_leak(estimator: Any) -> None:
    """Check that models that forgot and fresh models differ by at most the claimed epsilon.

    On a tiny problem with one very influential person, `_RUNS` models forget two people, and as
    many are fitted without them, all with secret noise. The outputs at two points give a lower
    bound on epsilon at the claimed delta, which must not exceed the claim. A correct method fails
    at most once in ten thousand times. With this number of runs the bound never exceeds 3, so use
    an epsilon of about 1 for this check.
    """
    people = make_lopsided_people(estimator)
    if fit_with_secret_noise(estimator, people).guarantee_.kind != "certified":
        return
    leaving = [people.unique_ids[0], CANARY]
    rest = people.without(leaving)
    forgot, fresh, claims = [], [], []
    for _ in range(_RUNS):
        model = forget_each(fit_with_secret_noise(estimator, people), leaving)
        claims.append(model.guarantee_)
        forgot.append(_get_published_output(model))
        fresh.append(_get_published_output(fit_with_secret_noise(estimator, rest)))
    if any(claim.kind != "certified" for claim in claims):
        return
    epsilon, delta = (max(getattr(c, name) for c in claims) for name in ("epsilon", "delta"))
    leak = epsilon_lower_bound(np.array(forgot), np.array(fresh), delta=delta, level=_LEVEL)
    assert leak <= epsilon, (
        f"the model claims epsilon = {epsilon:.3g} at delta = {delta:.3g}, but {_RUNS} models that "
        f"forgot and {_RUNS} fresh models differ by an epsilon of at least {leak:.3g}"
    )


def make_lopsided_people(estimator: Any) -> People:
    """Return twenty people with one row of one column each; the canary is a contrary outlier."""
    x = np.array([*np.linspace(-0.1, 0.1, 19), 1.0])
    if get_tags(estimator).input_tags.positive_only:
        x = np.abs(x)
    ids = np.array([*(f"person-{number:02d}" for number in range(19)), CANARY])
    above = np.append(x[:-1] > np.median(x[:-1]), False).astype(int)
    return People(x[:, None], make_target(estimator, np.append(3.0 * x[:-1], -1.0), above), ids)


def _get_published_output(model: Any) -> Floats:
    """Return the published outputs of a model at two points, as one vector."""
    if model.guarantee_.releases == "labels-only" and is_classifier(model):
        outputs = model.predict(_POINTS)
    elif hasattr(model, "decision_function"):
        outputs = model.decision_function(_POINTS)
    else:
        outputs = get_outputs(model, _POINTS)
    numbers = as_numbers(np.asarray(outputs)).ravel()
    assert np.isfinite(numbers).all(), "the model has outputs that are not finite"
    return numbers
