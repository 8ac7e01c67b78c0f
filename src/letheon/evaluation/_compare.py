"""Two models side by side: the survey's measures after the last request."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.evaluation._problem import Problem, Rows
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

__all__ = ["KL_FLOOR", "compare"]

# A tree gives probability 0 to what it has not seen; the exact divergence is then infinite.
KL_FLOOR = 1e-6
# Metrics of scikit-learn take a millisecond each.
_RESAMPLES = 400


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
