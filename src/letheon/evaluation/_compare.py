"""Two models side by side: the survey's measures after the last request."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.evaluation._problem import Problem, Rows, accuracy
from letheon.measures import (
    Measure,
    certifiability,
    certifiability_from_predictions,
    effectiveness,
    effectiveness_from_values,
    kl_consistency,
    output_consistency,
    parameter_consistency,
    prediction_gap,
)

__all__ = ["KL_FLOOR", "compare", "row_errors"]

# A tree gives probability 0 to what it has not seen; the exact divergence is then infinite.
KL_FLOOR = 1e-6
# Metrics of scikit-learn take a millisecond each.
_RESAMPLES = 400
# For a standard error alone.
_FEW_RESAMPLES = 60


def compare(
    problem: Problem,
    model: Any,
    rival: Any,
    test: Rows,
    forgotten: Rows,
    with_intervals: bool,
) -> dict[str, Measure]:
    """Return every measure that these two models allow, by name.

    Intervals over rows cost a bootstrap; an average over seeds does not need them.
    """
    found = [
        _effectiveness(problem, model, rival, test, with_intervals),
        _score_lost(problem, model, rival, test),
        *_consistency(problem, model, rival, test, with_intervals),
        _certifiability(problem, model, rival, forgotten, with_intervals),
    ]
    return {measure.name: measure for measure in found}


def _effectiveness(
    problem: Problem, model: Any, rival: Any, test: Rows, with_intervals: bool
) -> Measure:
    if with_intervals:
        ours, theirs = model.predict(test.X), rival.predict(test.X)
        return effectiveness(problem.metric, test.y, ours, theirs, n_resamples=_RESAMPLES)
    return effectiveness_from_values(
        problem.score(model, test), problem.score(rival, test), n=len(test)
    )


def _score_lost(problem: Problem, model: Any, rival: Any, test: Rows) -> Measure:
    """Return M(rival) - M(model): the price, negative where the unlearned model is the better."""
    lost = problem.score(rival, test) - problem.score(model, test)
    return Measure(
        name="score lost",
        value=lost,
        low=None,
        high=None,
        n=len(test),
        better="lower",
        basis="measured",
        note="signed: metric of the baseline minus that of the unlearned model",
    )


def row_errors(problem: Problem, model: Any, rival: Any, test: Rows) -> dict[str, float]:
    """Return the standard errors that the choice of test rows gives to measures on them.

    Runs of several seeds share their test rows, and so this error. For two accuracies it is that
    of Agresti and Min (2005), with one row more of each kind: models that agree on all rows may
    still differ on others.
    """
    ours, theirs = np.asarray(model.predict(test.X)), np.asarray(rival.predict(test.X))
    lost = _error_of_loss(problem, test, ours, theirs)
    found = {"effectiveness": lost, "score lost": lost}
    if not problem.is_regression:
        n = len(test) + 4
        share = (float(np.sum(ours == theirs)) + 2) / n
        found["output consistency"] = 100 * float(np.sqrt(share * (1 - share) / n))
    return found


def _error_of_loss(problem: Problem, test: Rows, ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    n = len(test)
    if problem.metric is accuracy:
        gaps = (theirs == test.y).astype(float) - (ours == test.y)
        variance = (float(gaps @ gaps) + 2) / (n + 2) - float(gaps.mean()) ** 2
        return float(np.sqrt(max(variance, 0.0) / n))
    drawn = np.random.default_rng(0).integers(n, size=(_FEW_RESAMPLES, n))
    gaps = np.array([_gap(problem, test.y[rows], ours[rows], theirs[rows]) for rows in drawn])
    gaps = gaps[np.isfinite(gaps)]
    return float(gaps.std()) if len(gaps) > 1 else 0.0


def _gap(problem: Problem, truth: NDArray[Any], ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return the score lost on some rows; NaN where the metric is not defined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return float(problem.metric(truth, theirs)) - float(problem.metric(truth, ours))
        except ValueError:
            return float("nan")


def _certifiability(
    problem: Problem, model: Any, rival: Any, forgotten: Rows, with_intervals: bool
) -> Measure:
    if with_intervals:
        ours, theirs = model.predict(forgotten.X), rival.predict(forgotten.X)
        metric = problem.forgotten_metric
        return certifiability_from_predictions(
            metric, forgotten.y, ours, theirs, n_resamples=_RESAMPLES
        )
    return certifiability(
        problem.score_on_forgotten(model, forgotten),
        problem.score_on_forgotten(rival, forgotten),
        n=len(forgotten),
    )


def _consistency(
    problem: Problem, model: Any, rival: Any, test: Rows, with_intervals: bool
) -> list[Measure]:
    ours, theirs = np.asarray(model.predict(test.X)), np.asarray(rival.predict(test.X))
    if problem.is_regression:
        found = [prediction_gap(ours, theirs)]
    else:
        found = [output_consistency(ours, theirs)]
        if hasattr(model, "predict_proba") and hasattr(rival, "predict_proba"):
            found.append(_divergence(model, rival, test, with_intervals))
    if type(model) is type(rival) and hasattr(model, "coef_"):
        pair = _parameters(model), _parameters(rival)
        # A class that only one of them has lost changes the number of parameters.
        if [part.shape for part in pair[0]] == [part.shape for part in pair[1]]:
            found.append(parameter_consistency(*pair))
    return found


def _divergence(model: Any, rival: Any, test: Rows, with_intervals: bool) -> Measure:
    found = kl_consistency(
        model.predict_proba(test.X),
        rival.predict_proba(test.X),
        classes_unlearned=model.classes_,
        classes_naive=rival.classes_,
        floor=KL_FLOOR,
        n_resamples=_RESAMPLES if with_intervals else 1,
    )
    return found if with_intervals else replace(found, low=None, high=None)


def _parameters(model: Any) -> list[NDArray[Any]]:
    return [np.asarray(model.coef_), np.atleast_1d(np.asarray(model.intercept_))]
