"""From trials to an evaluation, and what speaks against a method or its figures."""

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

# Requests and retrains that use more processors than one, beyond this share and these seconds.
_MORE_PROCESSORS, _MORE_SECONDS = 1.25, 0.05
# Receipts and processor time contradict each other if these are so many times apart, for requests
# of at least half a fit. Shorter requests are mostly overhead, more so on a loaded machine.
_WORK_FACTOR, _LARGE_SHARE, _LEAST_SECONDS = 10.0, 0.5, 0.03
_EXPONENTS_APART = 0.5
# Threads from before are mentioned if they use more than this share of what requests use.
_KNOWN_SHARE = 0.2
# Retrains so many times as slow as the first fits are no measure of training.
_SLOWER = 3.0
# Requests served from memory: so many times faster, and by luck in 1 of so many evaluations.
_REMEMBERED, _LUCK = 3.0, 40


def describe_timing(clock: RequestClock) -> list[str]:
    """Return how far requests were timed, as it was checked in this run."""
    if clock.has_given_up:
        text = "A request was NOT timed to its end: what it started worked on, and was not awaited."
    elif not clock.has_digest:
        text = (
            "A request is timed to the first answer after it. The model has no digest, so what it "
            "puts off further is not in the time."
        )
    else:
        text = (
            "A request is timed until the model has answered twice, has its digest, and no thread "
            "or child process that it started works any more, less what an answer and a digest "
            "take anyway."
        )
    unseen = (
        "Not seen: work that is put off until other calls than predict, predict_proba, "
        "decision_function, score, digest and pickle, and work on other machines or in processes "
        "that detached themselves. Of what a request puts off, work below "
        f"{1000 * max(clock.work_resolution, LEAST_LATE_SECONDS):.2g} ms and waiting below "
        f"{1000 * max(clock.wait_resolution, LEAST_LATE_SECONDS):.2g} ms may not be seen either."
    )
    lines = [text, unseen]
    if clock.n_idle:
        lines.append(
            f"{clock.n_idle} thread(s) or process(es) that the method started stayed alive, idle "
            "when looked at; what they do later is not in the time."
        )
    if not clock.sees_processes:
        lines.append("Work in child processes cannot be seen on this system.")
    return lines


def list_warnings(
    clock: RequestClock, trials: Sequence[Trial], attacks: Sequence[AttackResult]
) -> tuple[str, ...]:
    """Return what speaks against the method or its figures, in sentences."""
    n_false = sum(trial.n_false_receipts for trial in trials)
    doubts = [
        *describe_found_people(attacks),
        *_list_clock_warnings(clock),
        f"{n_false} receipt(s) count other rows than those of the people who left." * (n_false > 0),
        _describe_memory(trials),
        _describe_work_gap(trials),
    ]
    return tuple(doubt for doubt in doubts if doubt)


def describe_found_people(attacks: Sequence[AttackResult]) -> list[str]:
    """Return which attacks found people who should be forgotten."""
    about = [each for each in attacks if each.about == "forgotten" and each.found]
    return [f"People who should be forgotten were found: {each}." for each in about]


def _list_clock_warnings(clock: RequestClock) -> Iterator[str]:
    if clock.has_given_up:
        yield (
            "Requests left work behind: threads or processes went on for longer than they were "
            "waited for. The times of requests and of retrains are not reliable."
        )
    elif clock.n_busy:
        yield (
            f"{clock.n_busy} of {clock.n_requests} requests left work behind: threads or processes "
            "went on after forget had returned. They were waited for, on the clock."
        )
    ours, usual = clock.requests, max(clock.retrains.n_processors, 1.0)
    beyond = ours.processor - usual * ours.seconds
    if ours.n_processors > _MORE_PROCESSORS * usual and beyond > _MORE_SECONDS:
        yield (
            f"Requests used {ours.processor:.3g} s of processor time in {ours.seconds:.3g} s: "
            "other threads or processes worked for them, and fewer for the retrains."
        )
    if clock.known_seconds > max(_KNOWN_SHARE * ours.processor, _MORE_SECONDS):
        yield (
            "Threads that ran before the evaluation used "
            f"{clock.known_seconds:.3g} s of processor time during requests. What they did for "
            "the method, if anything, is not in its times."
        )
    if clock.late_seconds:
        yield (
            f"The method had put off {clock.late_seconds:.3g} s of work beyond its first answers "
            "and digests. They are counted in the last request of each trial."
        )
    if not clock.is_repeatable:
        yield "Two predictions of the same rows differ: the model adds noise to answers."
    # whether a retrain of the same algorithm is slower than the first fits
    ratio = clock.fastest_retrain / clock.slowest_fit if clock.slowest_fit else 0.0
    if _SLOWER <= ratio < math.inf and clock.fastest_retrain >= _LEAST_SECONDS:
        yield (
            f"Every retrain of the same algorithm took at least {ratio:.3g} times as long as the "
            "first fit, on fewer rows: the speed-up over it is not one over training."
        )


def _describe_memory(trials: Sequence[Trial]) -> str:
    """Return whether requests are faster where the remaining rows had been trained on before."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for trial in trials:
        for repeated, seconds in zip(trial.is_repeated, trial.forget_seconds, strict=False):
            times[repeated].append(seconds)
    known, new = times[True], times[False]
    if not known or math.comb(len(known) + len(new), len(known)) < _LUCK:
        return ""
    if max(known) * _REMEMBERED > min(new):
        return ""
    return (
        f"Requests took {np.mean(new) / np.mean(known):.3g} times less where a model had been "
        "trained on the remaining rows before: results are remembered outside the model."
    )


def check_strength(by_receipts: Strength, trials: Sequence[Trial], n: int) -> tuple[Strength, str]:
    """Hold the growth that receipts count against processor time, over the first n requests.

    Returns
    -------
    Strength
        As given; undecided where receipts and processor time contradict each other.
    str
        How they compare.
    """
    if _describe_work_gap(trials):
        return replace(by_receipts, kind="undecided"), "receipts and processor time disagree"
    seconds = np.array([trial.processor_seconds[:n] for trial in trials])
    if seconds.mean() < _LEAST_SECONDS:
        return by_receipts, "the requests are too short to check it by processor time"
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
    """Return whether receipts count far less than what requests took, in every trial."""
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
        f"Receipts count {work:.2g} of a retrain for a request, and it took {share:.2g} of the "
        "processor time of a fit."
    )


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


class AttackOutcomes(NamedTuple):
    """What attackers found, and why others could not run."""

    results: tuple[AttackResult, ...]
    failed: dict[str, str]


def summarise_trials(
    contest: TrialSetup, trials: tuple[Trial, ...], findings: AttackOutcomes, title: str | None
) -> Evaluation:
    """Return the evaluation that the trials give."""
    last, problem = trials[-1], contest.problem
    digests = [trial.equal_digests for trial in trials if trial.equal_digests is not None]
    is_proved = not describe_found_people(findings.results)
    growth, work_check = _work_strength(contest, trials)
    within = _RANGES.get(problem.metric)
    return Evaluation(
        title=title or type(contest.unlearner).__name__,
        method=contest.unlearner.facts.method,
        dataset=problem.name,
        settings=list_settings(contest.unlearner),
        requests=contest.asked.words,
        n_requests=len(contest.asked.sizes),
        n_people=last.n_people,
        n_rows=len(problem.train),
        measures={
            name: _measures_against(name, contest, trials, is_proved) for name in (SAME, ORDINARY)
        },
        floor=last.floor
        if len(trials) == 1
        else {name: _over_trials(name, [t.floor[name] for t in trials]) for name in last.floor},
        baselines={SAME: f"{contest.same.name} on the remaining rows", ORDINARY: contest.how},
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
        attacks=findings.results,
        failed_attacks=findings.failed,
        fairness=tuple(_describe_fairness(contest, last)),
        warnings=list_warnings(contest.clock, trials, findings.results),
        trials=trials,
    )


def _measures_against(
    baseline: str, contest: TrialSetup, trials: Sequence[Trial], is_proved: bool
) -> dict[str, Measure]:
    """Return every measure against one baseline, efficiency first."""
    measures = {"efficiency": _mean_efficiency(baseline, trials)}
    for name, first in trials[0].measures[baseline].items():
        values = [trial.measures[baseline][name] for trial in trials]
        errors = [trial.row_errors[baseline].get(name, 0.0) for trial in trials]
        if name == "certifiability" and not contest.asked.is_fixed:
            # Trials share their test rows, but each has forgotten rows of its own.
            errors = [error / math.sqrt(len(trials)) for error in errors]
        # One run has intervals over rows already; what has none gets one by its row error.
        is_done = len(trials) == 1 and (first.low is not None or not any(errors))
        measures[name] = first if is_done else _over_trials(name, values, errors)
    if baseline == SAME and is_proved and all(trial.equal_digests for trial in trials):
        note = f"exact: {trials[0].guarantee.reference}; every trial had the bytes of a fresh fit"
        proved = {name: value for name, value in _BY_PROOF.items() if name in measures}
        measures |= {
            name: by_proof(name, value, note=note, better=measures[name].better)
            for name, value in proved.items()
        }
    return measures


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


def _mean_efficiency(baseline: str, trials: Sequence[Trial]) -> Measure:
    """Return time(h_*) / time(h_U): the geometric mean over trials of the ratio of mean times."""
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


def _work_strength(contest: TrialSetup, trials: Sequence[Trial]) -> tuple[Strength | None, str]:
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


def _describe_fairness(contest: TrialSetup, last: Trial) -> Iterator[str]:
    """Yield how the comparison was kept fair, and what its figures are not."""
    shared, problem = min(contest.comparisons, len(contest.asked.sizes)), contest.problem
    yield "One process and one thread for everybody; n_jobs was not used."
    yield (
        f"The unlearner and both baselines were timed in turns, {shared} time(s) a trial; who "
        "goes first changed from one to the next."
    )
    yield f"{contest.warm[0].upper()}{contest.warm[1:]}."
    yield from describe_timing(contest.clock)
    yield f"Naive retraining ran by the fastest of: {'; '.join(contest.tried)}."
    yield f"Ordinary model: {contest.how}."
    if problem.metric is accuracy and is_unbalanced(problem.train.y):
        answer, share = largest_class(problem.train.y)
        yield (
            f"Class {answer!s} makes up {share:.0%} of the training rows, and a constant answer "
            "has about that accuracy. metric=sklearn.metrics.balanced_accuracy_score does not "
            "reward it."
        )
    is_ours = getattr(type(contest.unlearner), "digest", None) is ForgetMixin.digest
    if not is_ours and last.equal_digests is not None:
        yield "The digest is the method's own: that equal digests mean equal bytes is its word."
    held_out = f" {problem.n_held_out:,} people were held out for them." * bool(problem.n_held_out)
    yield f"Who is forgotten left the test rows too.{held_out}"
    if contest.asked.looks:
        yield "Who asked depended on the model then, so another method is asked by other people."
    if contest.asked.looks and last.guarantee.requests == "oblivious":
        yield (
            "These requests looked at the model, and the guarantee covers only requests that do "
            "not: here it is no more than what was measured."
        )
