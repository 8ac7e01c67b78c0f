"""From trials to an evaluation."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import r2_score

from letheon.base import ForgetMixin
from letheon.evaluation._attackers import Findings
from letheon.evaluation._baselines import ORDINARY, SAME
from letheon.evaluation._doubts import check_strength, find_doubts, say_found, say_timing
from letheon.evaluation._evaluation import Evaluation
from letheon.evaluation._metric import Metric, accuracy
from letheon.evaluation._names import settings_of
from letheon.evaluation._problem import Problem
from letheon.evaluation._trial import Contest, Trial
from letheon.measures import (
    Measure,
    Strength,
    by_proof,
    efficiency,
    geometric_mean,
    over_seeds,
    strength,
)
from letheon.scoring import is_unbalanced, largest_class

__all__ = ["Told", "summary"]

_FEWEST_FOR_STRENGTH = 16
_RANGES: dict[Metric, tuple[float, float]] = {accuracy: (0.0, 1.0), r2_score: (-math.inf, 1.0)}
# What an exact method has against its own retrain, without a run.
_BY_PROOF = {
    "effectiveness": 0.0,
    "score lost": 0.0,
    "output consistency": 100.0,
    "prediction gap": 0.0,
    "KL consistency": 0.0,
    "certifiability": 0.0,
}


class Told(NamedTuple):
    """What was tried before the trials, in words."""

    tried: list[str]
    how: str
    warm: str


def summary(
    contest: Contest,
    trials: tuple[Trial, ...],
    findings: Findings,
    told: Told,
    title: str | None,
) -> Evaluation:
    """Return the evaluation that the trials give."""
    last, problem = trials[-1], contest.problem
    digests = [trial.equal_digests for trial in trials if trial.equal_digests is not None]
    is_proved = not say_found(findings.results)
    growth, work_check = _strength(contest, trials)
    return Evaluation(
        title=title or type(contest.unlearner).__name__,
        method=contest.unlearner.facts.method,
        dataset=problem.name,
        settings=settings_of(contest.unlearner),
        requests=contest.asked.words,
        n_requests=len(contest.asked.sizes),
        n_people=last.n_people,
        n_rows=len(problem.train),
        measures={name: _against(name, contest, trials, is_proved) for name in (SAME, ORDINARY)},
        floor=_floor(trials),
        baselines={SAME: f"{contest.same.name} on the remaining rows", ORDINARY: told.how},
        seconds=_seconds(trials),
        scores=_scores(trials, _RANGES.get(problem.metric)),
        metric=problem.metric_name,
        storage=last.storage,
        work=_mean("work", [float(np.mean(trial.work)) for trial in trials]),
        strength=growth,
        work_check=work_check,
        guarantee=last.guarantee,
        equal_digests=all(digests) if digests else None,
        attacks=findings.results,
        failed_attacks=findings.failed,
        fairness=_fairness(contest, last, told),
        warnings=find_doubts(contest.clock, trials, findings.results),
        trials=trials,
    )


def _against(
    baseline: str, contest: Contest, trials: Sequence[Trial], is_proved: bool
) -> dict[str, Measure]:
    """Return every measure against one baseline, efficiency first."""
    found = {"efficiency": _efficiency(baseline, trials)}
    for name, first in trials[0].measures[baseline].items():
        values = [trial.measures[baseline][name] for trial in trials]
        errors = [trial.row_errors[baseline].get(name, 0.0) for trial in trials]
        if name == "certifiability" and not contest.asked.is_fixed:
            # Trials share their test rows, but each has forgotten rows of its own.
            errors = [error / math.sqrt(len(trials)) for error in errors]
        # One run has intervals over rows already; what has none gets one by its row error.
        is_done = len(trials) == 1 and (first.low is not None or not any(errors))
        found[name] = first if is_done else _over_trials(name, values, errors)
    if baseline == SAME and is_proved and all(trial.equal_digests for trial in trials):
        note = f"exact: {trials[0].guarantee.reference}; every trial had the bytes of a fresh fit"
        proved = {name: value for name, value in _BY_PROOF.items() if name in found}
        found |= {
            name: by_proof(name, value, note=note, better=found[name].better)
            for name, value in proved.items()
        }
    return found


def _floor(trials: Sequence[Trial]) -> dict[str, Measure]:
    first = trials[0].floor
    if len(trials) == 1:
        return first
    return {name: _over_trials(name, [trial.floor[name] for trial in trials]) for name in first}


def _over_trials(name: str, values: Sequence[Measure], errors: Sequence[float] = (0.0,)) -> Measure:
    """Return the mean over trials; trials share their test rows, and the error that these give."""
    first = values[0]
    if all(measure == first and first.low == first.high is not None for measure in values):
        return first
    return over_seeds(
        name,
        [measure.value for measure in values],
        better=first.better,
        unit=first.unit,
        basis=first.basis,
        note=first.note,
        shared_error=float(np.sqrt(np.mean(np.square(errors)))),
        n_shared=min(measure.n for measure in values),
    )


def _efficiency(baseline: str, trials: Sequence[Trial]) -> Measure:
    """Return time(h_*) / time(h_U): the geometric mean over trials of the ratio of mean times."""
    if len(trials) == 1:
        return efficiency(trials[0].retrain_seconds[baseline], trials[0].forget_seconds)
    ratios = [
        float(np.mean(trial.retrain_seconds[baseline]) / np.mean(trial.forget_seconds))
        for trial in trials
    ]
    return geometric_mean("efficiency", ratios)


def _seconds(trials: Sequence[Trial]) -> dict[str, Measure]:
    times = {
        "fit": [trial.fit_seconds for trial in trials],
        "forget": [float(np.mean(trial.forget_seconds)) for trial in trials],
        "returned": [float(np.mean(trial.returned_seconds)) for trial in trials],
    }
    for baseline in (SAME, ORDINARY):
        times[baseline] = [float(np.mean(t.retrain_seconds[baseline])) for t in trials]
    return {name: _mean(f"{name} time", values, unit="s") for name, values in times.items()}


def _scores(trials: Sequence[Trial], within: tuple[float, float] | None) -> dict[str, Measure]:
    values = {name: [trial.scores[name] for trial in trials] for name in trials[0].scores}
    return {
        name: over_seeds(name, each, better="higher", within=within)
        for name, each in values.items()
    }


def _mean(name: str, values: Sequence[float], unit: str = "") -> Measure:
    return over_seeds(name, values, better="lower", unit=unit, within=(0.0, math.inf))


def _strength(contest: Contest, trials: Sequence[Trial]) -> tuple[Strength | None, str]:
    """Return how the work grows along requests of one size, if it does so by processor time too.

    None for too few requests.
    """
    sizes = contest.asked.sizes
    # The last one may be what was left over.
    n = len(sizes) - (sizes[-1] < sizes[0])
    if n < _FEWEST_FOR_STRENGTH or len(set(sizes[:n])) > 1:
        return None, ""
    # A receipt counts shares of a retrain, which gets cheaper as rows leave.
    counted = strength(np.array([np.multiply(t.work, t.rows_left)[:n] for t in trials]))
    return check_strength(counted, trials, n)


def _fairness(contest: Contest, last: Trial, told: Told) -> tuple[str, ...]:
    shared = min(contest.comparisons, len(contest.asked.sizes))
    held_out = contest.problem.n_held_out
    turns = (
        f"The unlearner and both baselines were timed in turns, {shared} time(s) a trial; who "
        "goes first changed from one to the next."
    )
    return (
        "One process and one thread for everybody; n_jobs was not used.",
        turns,
        f"{told.warm[0].upper()}{told.warm[1:]}.",
        *say_timing(contest.clock),
        f"Naive retraining ran by the fastest of: {'; '.join(told.tried)}.",
        f"Ordinary model: {told.how}.",
        *_about_metric(contest.problem),
        *_about_digest(contest.unlearner, last),
        "Who is forgotten left the test rows too."
        + (f" {held_out:,} people were held out for them." if held_out else ""),
        *_about_adaptive(contest, last),
    )


def _about_metric(problem: Problem) -> list[str]:
    """Return what the default metric is worth where one class makes up most of the rows."""
    if problem.metric is not accuracy or not is_unbalanced(problem.train.y):
        return []
    answer, share = largest_class(problem.train.y)
    text = (
        f"Class {answer!s} makes up {share:.0%} of the training rows, and a constant answer has "
        "about that accuracy. metric=sklearn.metrics.balanced_accuracy_score does not reward it."
    )
    return [text]


def _about_digest(unlearner: Any, last: Trial) -> list[str]:
    """Return that equal digests are the method's own word, where letheon does not compute them."""
    is_ours = getattr(type(unlearner), "digest", None) is ForgetMixin.digest
    if is_ours or last.equal_digests is None:
        return []
    return ["The digest is the method's own: that equal digests mean equal bytes is its word."]


def _about_adaptive(contest: Contest, last: Trial) -> list[str]:
    """Return what is to be said of requests that looked at the model."""
    if not contest.asked.looks:
        return []
    found = ["Who asked depended on the model then, so another method is asked by other people."]
    if last.guarantee.requests == "oblivious":
        found.append(
            "These requests looked at the model, and the guarantee covers only requests that do "
            "not: here it is no more than what was measured."
        )
    return found
