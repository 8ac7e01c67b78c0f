"""From trials to an evaluation."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from letheon.evaluation._baselines import ORDINARY, SAME
from letheon.evaluation._evaluation import Evaluation
from letheon.evaluation._problem import accuracy
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
from letheon.measures.attacks import AttackResult

__all__ = ["summary"]

_FEWEST_FOR_STRENGTH = 16
# What an exact method has against its own retrain, without a run.
_BY_PROOF = {
    "effectiveness": 0.0,
    "score lost": 0.0,
    "output consistency": 100.0,
    "prediction gap": 0.0,
    "KL consistency": 0.0,
    "certifiability": 0.0,
}


def summary(
    contest: Contest,
    trials: tuple[Trial, ...],
    attacks: tuple[AttackResult, ...],
    *,
    title: str | None,
    requests: str,
    tried: list[str],
    how: str,
    warm: str,
) -> Evaluation:
    """Return the evaluation that the trials give."""
    last, problem = trials[-1], contest.problem
    digests = [trial.equal_digests for trial in trials if trial.equal_digests is not None]
    return Evaluation(
        title=title or type(contest.unlearner).__name__,
        method=contest.unlearner.facts.method,
        dataset=problem.name,
        settings=_settings(contest.unlearner),
        requests=requests,
        n_requests=contest.n_requests,
        n_people=last.n_people,
        n_rows=len(problem.train),
        measures={name: _against(name, trials) for name in (SAME, ORDINARY)},
        floor=_floor(trials),
        baselines={SAME: f"{contest.same.name} on the remaining rows", ORDINARY: how},
        seconds=_seconds(trials),
        scores=_scores(trials, problem.metric is accuracy),
        metric=problem.metric_name,
        storage=last.storage,
        work=_mean("work", [float(np.mean(trial.work)) for trial in trials]),
        strength=_strength(trials),
        guarantee=last.guarantee,
        equal_digests=all(digests) if digests else None,
        attacks=attacks,
        fairness=_fairness(contest, tried, how, warm),
        trials=trials,
    )


def _against(baseline: str, trials: Sequence[Trial]) -> dict[str, Measure]:
    """Return every measure against one baseline, efficiency first."""
    found = {"efficiency": _efficiency(baseline, trials)}
    for name, first in trials[0].measures[baseline].items():
        values = [trial.measures[baseline][name] for trial in trials]
        errors = [trial.row_errors[baseline].get(name, 0.0) for trial in trials]
        # One run has intervals over rows already; what has none gets one by its row error.
        is_done = len(trials) == 1 and (first.low is not None or not any(errors))
        found[name] = first if is_done else _over_trials(name, values, errors)
    if baseline == SAME and all(trial.equal_digests for trial in trials):
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
    }
    for baseline in (SAME, ORDINARY):
        times[baseline] = [float(np.mean(t.retrain_seconds[baseline])) for t in trials]
    return {name: _mean(f"{name} time", values, unit="s") for name, values in times.items()}


def _scores(trials: Sequence[Trial], is_share: bool) -> dict[str, Measure]:
    within = (0.0, 1.0) if is_share else None
    values = {name: [trial.scores[name] for trial in trials] for name in trials[0].scores}
    return {
        name: over_seeds(name, each, better="higher", within=within)
        for name, each in values.items()
    }


def _mean(name: str, values: Sequence[float], unit: str = "") -> Measure:
    return over_seeds(name, values, better="lower", unit=unit, within=(0.0, math.inf))


def _strength(trials: Sequence[Trial]) -> Strength | None:
    if len(trials[0].work) < _FEWEST_FOR_STRENGTH:
        return None
    work = np.array([trial.work for trial in trials])
    return strength(work) if (work > 0).all() else None


def _settings(unlearner: Any) -> dict[str, Any]:
    """Return the parameters that differ from their defaults, in words where they are objects."""
    given = unlearner.get_params(deep=False)
    try:
        usual = clone(type(unlearner)()).get_params(deep=False)
    except TypeError:  # an estimator inside has no default
        usual = {}
    kept = {name: value for name, value in given.items() if not _equal(value, usual.get(name))}
    plain = (bool, int, float, str, type(None))
    return {
        name: value if isinstance(value, plain) else repr(value)
        for name, value in kept.items()
        if name not in ("random_state", "noise_seed")
    }


def _equal(value: Any, usual: Any) -> bool:
    same = value is usual or (type(value) is type(usual) and value == usual)
    return bool(np.all(same))


def _fairness(contest: Contest, tried: list[str], how: str, warm: str) -> tuple[str, ...]:
    shared = min(contest.comparisons, contest.n_requests)
    turns = (
        f"The unlearner and both baselines were timed in turns, {shared} time(s) a trial; who "
        "goes first changed from one to the next."
    )
    return (
        "One process and one thread for everybody.",
        turns,
        f"{warm[0].upper()}{warm[1:]}.",
        "A request is timed to its end, with everything that a lazy method puts off.",
        f"Naive retraining ran by the fastest of: {'; '.join(tried)}.",
        f"Ordinary model: {how}.",
        "Who is forgotten left the test rows too.",
    )
