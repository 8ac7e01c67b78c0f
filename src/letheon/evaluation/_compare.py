"""Two models side by side: the survey's measures after the last request."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.evaluation._metric import Metric, accuracy
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

__all__ = ["KL_FLOOR", "Exam", "compare", "row_errors"]

# A tree gives probability 0 to what it has not seen; the exact divergence is then infinite.
KL_FLOOR = 1e-6
# Metrics of scikit-learn take a millisecond each.
_RESAMPLES = 400
# For a standard error alone.
_FEW_RESAMPLES = 60


@dataclass(frozen=True)
class Exam:
    """The rows on which models are compared.

    Intervals over rows cost a bootstrap; an average over seeds does not need them.
    """

    problem: Problem
    test: Rows
    forgotten: Rows
    with_intervals: bool

    def agrees_in_numbers(self, model: Any, rival: Any) -> bool:
        """Return whether two regressions give the very same numbers: no row tells them apart."""
        return self.problem.is_regression and np.array_equal(
            model.predict(self.test.X), rival.predict(self.test.X)
        )


def compare(exam: Exam, model: Any, rival: Any) -> dict[str, Measure]:
    """Return every measure that these two models allow, by name."""
    on_test = [_effectiveness(exam, model, rival), _score_lost(exam, model, rival)]
    found = [*on_test, *_consistency(exam, model, rival)]
    if exam.agrees_in_numbers(model, rival):
        found = [_as_fact(measure) for measure in found]
    found.append(_certifiability(exam, model, rival))
    return {measure.name: measure for measure in found}


def _as_fact(measure: Measure) -> Measure:
    return replace(measure, low=measure.value, high=measure.value)


def _effectiveness(exam: Exam, model: Any, rival: Any) -> Measure:
    problem, test = exam.problem, exam.test
    if exam.with_intervals:
        ours, theirs = model.predict(test.X), rival.predict(test.X)
        return effectiveness(problem.metric, test.y, ours, theirs, n_resamples=_RESAMPLES)
    return effectiveness_from_values(
        problem.score(model, test), problem.score(rival, test), n=len(test)
    )


def _score_lost(exam: Exam, model: Any, rival: Any) -> Measure:
    """Return M(rival) - M(model): the price, negative where the unlearned model is the better."""
    lost = exam.problem.score(rival, exam.test) - exam.problem.score(model, exam.test)
    return Measure(
        name="score lost",
        value=lost,
        low=None,
        high=None,
        n=len(exam.test),
        better="lower",
        basis="measured",
        note="signed: metric of the baseline minus that of the unlearned model",
    )


def row_errors(exam: Exam, model: Any, rival: Any) -> dict[str, float]:
    """Return the standard errors that the choice of rows gives to measures on them.

    Runs of several seeds share their test rows, and so this error. For two accuracies it is that
    of Agresti and Min (2005), with one row more of each kind: models that agree on all rows may
    still differ on others. SAPE and the root of a mean square have theirs by the delta method.
    """
    problem, test, forgotten = exam.problem, exam.test, exam.forgotten
    ours, theirs = np.asarray(model.predict(test.X)), np.asarray(rival.predict(test.X))
    lost = _error_of_loss(problem.metric, test.y, ours, theirs)
    found = {"effectiveness": lost, "score lost": lost}
    if problem.is_regression:
        found["prediction gap"] = _error_of_root_mean(ours, theirs)
    else:
        n = len(test) + 4
        share = (float(np.sum(ours == theirs)) + 2) / n
        found["output consistency"] = 100 * float(np.sqrt(share * (1 - share) / n))
    pair = np.asarray(model.predict(forgotten.X)), np.asarray(rival.predict(forgotten.X))
    metric = problem.forgotten_metric
    size = sum(abs(float(metric(forgotten.y, each))) for each in pair)
    error = _error_of_loss(metric, forgotten.y, *pair)
    found["certifiability"] = 100 * error / (size or 1.0)
    return found


def _error_of_loss(
    metric: Metric, truth: NDArray[Any], ours: NDArray[Any], theirs: NDArray[Any]
) -> float:
    """Return the standard error of the difference of two scores on the same rows."""
    if metric is accuracy:
        return _error_of_accuracy(truth, ours, theirs)
    n = len(truth)
    drawn = np.random.default_rng(0).integers(n, size=(_FEW_RESAMPLES, n))
    gaps = np.array([_gap(metric, truth[rows], ours[rows], theirs[rows]) for rows in drawn])
    gaps = gaps[np.isfinite(gaps)]
    error = float(gaps.std()) if len(gaps) > 1 else 0.0
    # Labels that agree on these rows need not agree on others; equal numbers do.
    is_label = ours.dtype.kind != "f"
    return _error_of_accuracy(truth, ours, theirs) if error == 0 and is_label else error


def _error_of_accuracy(truth: NDArray[Any], ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    n = len(truth)
    gaps = (theirs == truth).astype(float) - (ours == truth)
    variance = (float(gaps @ gaps) + 2) / (n + 2) - float(gaps.mean()) ** 2
    return float(np.sqrt(max(variance, 0.0) / n))


def _error_of_root_mean(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    squares = np.square(ours - theirs)
    root = float(np.sqrt(squares.mean()))
    return float(squares.std()) / (2 * root * np.sqrt(len(squares))) if root > 0 else 0.0


def _gap(metric: Metric, truth: NDArray[Any], ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return the score lost on some rows; NaN where the metric is not defined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return float(metric(truth, theirs)) - float(metric(truth, ours))
        except ValueError:
            return float("nan")


def _certifiability(exam: Exam, model: Any, rival: Any) -> Measure:
    problem, forgotten = exam.problem, exam.forgotten
    if exam.with_intervals:
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


def _consistency(exam: Exam, model: Any, rival: Any) -> list[Measure]:
    X = exam.test.X
    ours, theirs = np.asarray(model.predict(X)), np.asarray(rival.predict(X))
    if exam.problem.is_regression:
        found = [prediction_gap(ours, theirs)]
    else:
        found = [output_consistency(ours, theirs)]
        if hasattr(model, "predict_proba") and hasattr(rival, "predict_proba"):
            found.append(_divergence(exam, model, rival))
    if type(model) is type(rival) and hasattr(model, "coef_"):
        pair = _parameters(model), _parameters(rival)
        # A class that only one of them has lost changes the number of parameters.
        if [part.shape for part in pair[0]] == [part.shape for part in pair[1]]:
            found.append(parameter_consistency(*pair))
    return found


def _divergence(exam: Exam, model: Any, rival: Any) -> Measure:
    found = kl_consistency(
        model.predict_proba(exam.test.X),
        rival.predict_proba(exam.test.X),
        classes_unlearned=model.classes_,
        classes_naive=rival.classes_,
        floor=KL_FLOOR,
        n_resamples=_RESAMPLES if exam.with_intervals else 1,
    )
    return found if exam.with_intervals else replace(found, low=None, high=None)


def _parameters(model: Any) -> list[NDArray[Any]]:
    return [np.asarray(model.coef_), np.atleast_1d(np.asarray(model.intercept_))]
