"""Summary of trials as an `Evaluation`, with warnings about the method or its figures."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from sklearn.metrics import r2_score

from letheon.base import ForgetMixin
from letheon.evaluation._baselines import ORDINARY, SAME
from letheon.evaluation._clock import LEAST_LATE_SECONDS, RequestClock
from letheon.evaluation._evaluation import Evaluation
from letheon.evaluation._problem import Metric, accuracy, list_settings
from letheon.evaluation._trial import Trial, TrialSetup
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
from letheon.scoring import is_unbalanced, largest_class

# Requests that use more processors than retrains, by this factor and these seconds.
_MORE_PROCESSORS, _MORE_SECONDS = 1.25, 0.05
# Receipts and processor time contradict each other if they differ by this factor, for requests of
# at least half a fit. Shorter requests are mostly overhead, especially on a busy machine.
_WORK_FACTOR, _LARGE_SHARE, _LEAST_SECONDS = 10.0, 0.5, 0.03
_EXPONENTS_APART = 0.5
# Earlier threads are reported if they use more than this share of the time of requests.
_KNOWN_SHARE = 0.2
# Retrains that are slower than the first fits by this factor do not measure training.
_SLOWER = 3.0
# Requests served from memory: faster by this factor, by chance in 1 of this many evaluations.
_REMEMBERED, _LUCK = 3.0, 40


def describe_timing(clock: RequestClock) -> list[str]:
    """Return sentences about how requests were timed in this run."""
    if clock.has_given_up:
        text = "A request was NOT timed until its end: its background work exceeded the time limit."
    elif not clock.has_digest:
        text = (
            "A request is timed until the first prediction after it. The model has no digest, so "
            "work that is deferred further is not included."
        )
    else:
        text = (
            "A request is timed until the model has predicted twice and computed its digest, and "
            "no thread or child process that it started is working. The usual time of a prediction "
            "and a digest is subtracted."
        )
    unseen = (
        "Not included: work that is deferred to calls other than predict, predict_proba, "
        "decision_function, score, digest and pickle, and work on other machines or in detached "
        "processes. Deferred work below "
        f"{1000 * max(clock.work_resolution, LEAST_LATE_SECONDS):.2g} ms and deferred waits below "
        f"{1000 * max(clock.wait_resolution, LEAST_LATE_SECONDS):.2g} ms may not be detected."
    )
    lines = [text, unseen]
    if clock.n_idle:
        lines.append(
            f"{clock.n_idle} thread(s) or process(es) that the method started stayed alive, but "
            "idle; their later work is not included."
        )
    if not clock.sees_processes:
        lines.append("Work in child processes cannot be measured on this system.")
    return lines


def list_warnings(
    clock: RequestClock, trials: Sequence[Trial], attacks: Sequence[AttackResult]
) -> tuple[str, ...]:
    """Return sentences that warn about the method or its figures."""
    n_false = sum(trial.n_false_receipts for trial in trials)
    doubts = [
        *describe_found_people(attacks),
        *_list_clock_warnings(clock),
        f"{n_false} receipt(s) state a wrong number of removed rows." * (n_false > 0),
        _describe_memory(trials),
        _describe_work_gap(trials),
    ]
    return tuple(doubt for doubt in doubts if doubt)


def describe_found_people(attacks: Sequence[AttackResult]) -> list[str]:
    """Return a warning for each attack that detected people who should be forgotten."""
    hits = [attack for attack in attacks if attack.about == "forgotten" and attack.found]
    return [f"An attack found people who should be forgotten: {attack}." for attack in hits]


def _list_clock_warnings(clock: RequestClock) -> Iterator[str]:
    if clock.has_given_up:
        yield (
            "Requests left background work that exceeded the time limit. The times of requests and "
            "retrains are not reliable."
        )
    elif clock.n_busy:
        yield (
            f"{clock.n_busy} of {clock.n_requests} requests left background work: threads or "
            "processes continued after forget returned. Their time is included."
        )
    ours, usual = clock.requests, max(clock.retrains.n_processors, 1.0)
    beyond = ours.processor - usual * ours.seconds
    if ours.n_processors > _MORE_PROCESSORS * usual and beyond > _MORE_SECONDS:
        yield (
            f"Requests used {ours.processor:.3g} s of processor time in {ours.seconds:.3g} s: they "
            "used more threads or processes than the retrains."
        )
    if clock.known_seconds > max(_KNOWN_SHARE * ours.processor, _MORE_SECONDS):
        yield (
            "Threads that were started before the evaluation used "
            f"{clock.known_seconds:.3g} s of processor time during requests. Their work for the "
            "method, if any, is not included in its times."
        )
    if clock.late_seconds:
        yield (
            f"The method deferred {clock.late_seconds:.3g} s of work beyond its first predictions "
            "and digests. This time is added to the last request of each trial."
        )
    if not clock.is_repeatable:
        yield "Repeated predictions of the same rows differ: the model adds noise to predictions."
    # Is a retrain of the same algorithm slower than the first fits?
    ratio = clock.fastest_retrain / clock.slowest_fit if clock.slowest_fit else 0.0
    if _SLOWER <= ratio < math.inf and clock.fastest_retrain >= _LEAST_SECONDS:
        yield (
            f"Every retrain of the same algorithm took at least {ratio:.3g} times as long as the "
            "first fit, on fewer rows: the speed-up is not relative to plain training."
        )


def _describe_memory(trials: Sequence[Trial]) -> str:
    """Return a warning if requests are faster when a model was trained on the same rows before."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for trial in trials:
        for is_repeated, seconds in zip(trial.is_repeated, trial.forget_seconds, strict=False):
            times[is_repeated].append(seconds)
    repeated, new = times[True], times[False]
    if not repeated or math.comb(len(repeated) + len(new), len(repeated)) < _LUCK:
        return ""
    if max(repeated) * _REMEMBERED > min(new):
        return ""
    return (
        f"Requests were {np.mean(new) / np.mean(repeated):.3g} times faster after a model had been "
        "trained on the remaining rows: the method caches results outside the model."
    )


def check_strength(by_receipts: Strength, trials: Sequence[Trial], n: int) -> tuple[Strength, str]:
    """Compare the growth of the counted work with processor time, over the first n requests.

    Returns
    -------
    Strength
        `by_receipts`, or undecided if receipts and processor time contradict each other.
    str
        A sentence about the result of the comparison.
    """
    if _describe_work_gap(trials):
        return replace(by_receipts, kind="undecided"), "receipts and processor time disagree"
    seconds = np.array([trial.processor_seconds[:n] for trial in trials])
    if seconds.mean() < _LEAST_SECONDS:
        return by_receipts, "the requests are too short to check it with processor time"
    timed = strength(seconds)
    exponents = by_receipts.exponent.value, timed.exponent.value
    is_opposite = {by_receipts.kind, timed.kind} == {"strong", "weak"}
    if is_opposite and abs(exponents[0] - exponents[1]) > _EXPONENTS_APART:
        return replace(by_receipts, kind="undecided"), (
            f"receipts and processor time disagree: {by_receipts.kind} against {timed.kind}, "
            f"exponents {exponents[0]:.2g} and {exponents[1]:.2g}"
        )
    if timed.kind == by_receipts.kind:
        return by_receipts, "processor time confirms it"
    return by_receipts, "processor time neither confirms nor refutes it"


def _describe_work_gap(trials: Sequence[Trial]) -> str:
    """Return a warning if the receipts of every trial count much less work than was measured."""
    levels = []
    for trial in trials:
        seconds = float(np.mean(trial.processor_seconds or 0.0))
        fit, work = trial.fit_processor_seconds, float(np.mean(trial.work))
        share = seconds / fit if fit > 0 else 0.0
        if seconds < _LEAST_SECONDS or share < max(_LARGE_SHARE, _WORK_FACTOR * work):
            return ""
        levels.append((work, share))
    work, share = np.mean(levels, axis=0)
    return (
        f"Receipts count {work:.2g} of a retrain per request, but requests took {share:.2g} of the "
        "processor time of a fit."
    )


_FEWEST_FOR_STRENGTH = 16
_RANGES: dict[Metric, tuple[float, float]] = {accuracy: (0.0, 1.0), r2_score: (-math.inf, 1.0)}
# The measures of an exact method compared with its own retrain, known without a run.
_BY_PROOF = {
    "effectiveness": 0.0,
    "score lost": 0.0,
    "output consistency": 100.0,
    "prediction gap": 0.0,
    "KL consistency": 0.0,
    "certifiability": 0.0,
}


class AttackOutcomes(NamedTuple):
    """Results of attacks, and errors of attacks that failed."""

    results: tuple[AttackResult, ...]
    failed: dict[str, str]


def summarise_trials(
    setup: TrialSetup, trials: tuple[Trial, ...], outcomes: AttackOutcomes, title: str | None
) -> Evaluation:
    """Return an `Evaluation` that summarises the trials and the attacks."""
    last, problem = trials[-1], setup.problem
    digests = [trial.equal_digests for trial in trials if trial.equal_digests is not None]
    is_proved = not describe_found_people(outcomes.results)
    growth, work_check = _work_strength(setup, trials)
    within = _RANGES.get(problem.metric)
    return Evaluation(
        title=title or type(setup.unlearner).__name__,
        method=setup.unlearner.facts.method,
        dataset=problem.name,
        settings=list_settings(setup.unlearner),
        requests=setup.requests.words,
        n_requests=len(setup.requests.sizes),
        n_people=last.n_people,
        n_rows=len(problem.train),
        measures={n: _measures_against(n, setup, trials, is_proved) for n in (SAME, ORDINARY)},
        floor=last.floor
        if len(trials) == 1
        else {name: _over_trials(name, [t.floor[name] for t in trials]) for name in last.floor},
        baselines={SAME: f"{setup.same.name} on the remaining rows", ORDINARY: setup.choice},
        seconds=_mean_seconds(trials),
        scores={
            name: over_seeds(name, [t.scores[name] for t in trials], better="higher", within=within)
            for name in last.scores
        },
        metric=problem.metric_name,
        storage=last.storage,
        work=_mean_measure("work", [float(np.mean(trial.work)) for trial in trials]),
        strength=growth,
        work_check=work_check,
        guarantee=last.guarantee,
        equal_digests=all(digests) if digests else None,
        attacks=outcomes.results,
        failed_attacks=outcomes.failed,
        fairness=tuple(_describe_fairness(setup, last)),
        warnings=list_warnings(setup.clock, trials, outcomes.results),
        trials=trials,
    )


def _measures_against(
    baseline: str, setup: TrialSetup, trials: Sequence[Trial], is_proved: bool
) -> dict[str, Measure]:
    """Return all measures with respect to one baseline, efficiency first."""
    measures = {"efficiency": _mean_efficiency(baseline, trials)}
    for name, first in trials[0].measures[baseline].items():
        values = [trial.measures[baseline][name] for trial in trials]
        errors = [trial.row_errors[baseline].get(name, 0.0) for trial in trials]
        if name == "certifiability" and not setup.requests.is_fixed:
            # Trials share their test rows, but not their forgotten rows.
            errors = [error / math.sqrt(len(trials)) for error in errors]
        # A single trial already has intervals over rows; the others get one from the row error.
        is_done = len(trials) == 1 and (first.low is not None or not any(errors))
        measures[name] = first if is_done else _over_trials(name, values, errors)
    if baseline == SAME and is_proved and all(trial.equal_digests for trial in trials):
        note = f"exact: {trials[0].guarantee.reference}; digests equal a fresh fit in every trial"
        proved = {name: value for name, value in _BY_PROOF.items() if name in measures}
        measures |= {
            name: by_proof(name, value, note=note, better=measures[name].better)
            for name, value in proved.items()
        }
    return measures


def _over_trials(name: str, values: Sequence[Measure], errors: Sequence[float] = (0.0,)) -> Measure:
    """Return the mean of a measure over trials, with an interval.

    The trials use the same test rows, so `errors`, due to the choice of rows, do not average out.
    """
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


def _mean_efficiency(baseline: str, trials: Sequence[Trial]) -> Measure:
    """Return the efficiency: time to retrain divided by time to forget.

    It is the geometric mean over trials of the ratio of mean times.
    """
    if len(trials) == 1:
        return efficiency(trials[0].retrain_seconds[baseline], trials[0].forget_seconds)
    ratios = [
        float(np.mean(trial.retrain_seconds[baseline]) / np.mean(trial.forget_seconds))
        for trial in trials
    ]
    return geometric_mean("efficiency", ratios)


def _mean_seconds(trials: Sequence[Trial]) -> dict[str, Measure]:
    times = {
        "fit": [trial.fit_seconds for trial in trials],
        "forget": [float(np.mean(trial.forget_seconds)) for trial in trials],
        "returned": [float(np.mean(trial.returned_seconds)) for trial in trials],
    }
    for baseline in (SAME, ORDINARY):
        times[baseline] = [float(np.mean(t.retrain_seconds[baseline])) for t in trials]
    return {name: _mean_measure(f"{name} time", values, unit="s") for name, values in times.items()}


def _mean_measure(name: str, values: Sequence[float], unit: str = "") -> Measure:
    return over_seeds(name, values, better="lower", unit=unit, within=(0.0, math.inf))


def _work_strength(setup: TrialSetup, trials: Sequence[Trial]) -> tuple[Strength | None, str]:
    """Return how the work grows over requests of equal size, and a text about its check.

    The strength is None, and the text empty, if there are too few requests of equal size.
    """
    sizes = setup.requests.sizes
    # The last request may be smaller.
    n = len(sizes) - (sizes[-1] < sizes[0])
    if n < _FEWEST_FOR_STRENGTH or len(set(sizes[:n])) > 1:
        return None, ""
    # A receipt counts shares of a retrain, which gets cheaper as rows are removed.
    counted = strength(np.array([np.multiply(t.work, t.rows_left)[:n] for t in trials]))
    return check_strength(counted, trials, n)


def _describe_fairness(setup: TrialSetup, last: Trial) -> Iterator[str]:
    """Yield sentences on how the comparison was kept fair, and on the limits of its figures."""
    shared, problem = min(setup.comparisons, len(setup.requests.sizes)), setup.problem
    yield "All methods ran in one process and one thread; n_jobs was ignored."
    yield (
        f"The unlearner and both baselines were timed alternately, {shared} time(s) per trial, in "
        "changing order."
    )
    yield f"{setup.warm_up}."
    yield from describe_timing(setup.clock)
    yield f"Naive retraining used the fastest of: {'; '.join(setup.race)}."
    yield f"Ordinary model: {setup.choice}."
    if problem.metric is accuracy and is_unbalanced(problem.train.y):
        answer, share = largest_class(problem.train.y)
        yield (
            f"Class {answer!s} makes up {share:.0%} of the training rows, so a constant prediction "
            "has about that accuracy. Use metric=sklearn.metrics.balanced_accuracy_score to avoid "
            "this."
        )
    is_ours = getattr(type(setup.unlearner), "digest", None) is ForgetMixin.digest
    if not is_ours and last.equal_digests is not None:
        yield "The method has its own digest: that equal digests mean equal bytes is only a claim."
    held_out = f" {problem.n_held_out:,} people were held out." * bool(problem.n_held_out)
    yield f"Forgotten people were removed from the test rows too.{held_out}"
    if setup.requests.is_adaptive:
        yield "The requests depended on the model, so other methods get other requests."
    if setup.requests.is_adaptive and last.guarantee.requests == "oblivious":
        yield (
            "These requests depended on the model, and the guarantee covers only requests that do "
            "not: here the method is only as good as measured."
        )
