"""What was checked in an evaluation, and what speaks against a method or its figures."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from letheon.evaluation._clock import LEAST_LATE_SECONDS, RequestClock
from letheon.evaluation._trial import Trial
from letheon.measures import Strength, strength
from letheon.measures.attacks import AttackResult

__all__ = [
    "CANARY",
    "check_strength",
    "find_doubts",
    "is_noticeable",
    "say_found",
    "say_timing",
    "say_what_was_tested",
]

# What the names of attacks of the canary test begin with.
CANARY = "canary "
_NOTICEABLE = 1.25
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


def say_what_was_tested(attacks: Sequence[AttackResult], failed: dict[str, str]) -> str:
    """Return which attacks tested whether people were forgotten, and what they found."""
    about = [each for each in attacks if each.about == "forgotten"]
    able = [each for each in about if each.has_power is not False]
    parts = [f"{each.attack} ({each.verdict})" for each in able]
    if parts:
        text = f"Forgetting was tested by {', '.join(parts)}. Not found proves nothing."
        if any(each.attack.startswith(CANARY) for each in able):
            text += " Canaries leave in one request; people who leave one by one were not tested."
    else:
        text = "Forgetting was not tested: no attack " + ("had power here." if about else "ran.")
    weak = [each.attack for each in about if each not in able]
    if weak:
        text += f" Without power, as it finds nobody before the request either: {', '.join(weak)}."
    return text + (f" Could not run: {', '.join(failed)}." if failed else "")


def is_noticeable(returned: float, complete: float) -> bool:
    """Return whether a request is complete noticeably later than `forget` returns."""
    return complete > _NOTICEABLE * returned


def say_timing(clock: RequestClock) -> list[str]:
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


def find_doubts(
    clock: RequestClock, trials: Sequence[Trial], attacks: Sequence[AttackResult]
) -> tuple[str, ...]:
    """Return what speaks against the method or its figures, in sentences."""
    doubts = [
        *say_found(attacks),
        *_about_clock(clock),
        _about_fits(clock),
        _about_receipts(trials),
        _about_memory(trials),
        _about_level(trials),
    ]
    return tuple(doubt for doubt in doubts if doubt)


def say_found(attacks: Sequence[AttackResult]) -> list[str]:
    """Return which attacks found people who should be forgotten."""
    found = [each for each in attacks if each.about == "forgotten" and each.found]
    return [f"People who should be forgotten were found: {each}." for each in found]


def _about_clock(clock: RequestClock) -> list[str]:
    doubts = []
    if clock.has_given_up:
        doubts.append(
            "Requests left work behind: threads or processes went on for longer than they were "
            "waited for. The times of requests and of retrains are not reliable."
        )
    elif clock.n_busy:
        doubts.append(
            f"{clock.n_busy} of {clock.n_requests} requests left work behind: threads or processes "
            "went on after forget had returned. They were waited for, on the clock."
        )
    ours, usual = clock.requests, max(clock.retrains.n_processors, 1.0)
    beyond = ours.processor - usual * ours.seconds
    if ours.n_processors > _MORE_PROCESSORS * usual and beyond > _MORE_SECONDS:
        doubts.append(
            f"Requests used {ours.processor:.3g} s of processor time in {ours.seconds:.3g} s: "
            "other threads or processes worked for them, and fewer for the retrains."
        )
    if clock.known_seconds > max(_KNOWN_SHARE * ours.processor, _MORE_SECONDS):
        doubts.append(
            "Threads that ran before the evaluation used "
            f"{clock.known_seconds:.3g} s of processor time during requests. What they did for "
            "the method, if anything, is not in its times."
        )
    if clock.late_seconds:
        doubts.append(
            f"The method had put off {clock.late_seconds:.3g} s of work beyond its first answers "
            "and digests. They are counted in the last request of each trial."
        )
    if not clock.is_repeatable:
        doubts.append("Two predictions of the same rows differ: the model adds noise to answers.")
    return doubts


def _about_fits(clock: RequestClock) -> str:
    """Return whether a retrain of the same algorithm is slower than the first fits."""
    ratio = clock.fastest_retrain / clock.slowest_fit if clock.slowest_fit else 0.0
    if not _SLOWER <= ratio < math.inf or clock.fastest_retrain < _LEAST_SECONDS:
        return ""
    return (
        f"Every retrain of the same algorithm took at least {ratio:.3g} times as long as the first "
        "fit, on fewer rows: the speed-up over it is not one over training."
    )


def _about_receipts(trials: Sequence[Trial]) -> str:
    n_false = sum(trial.n_false_receipts for trial in trials)
    if not n_false:
        return ""
    return f"{n_false} receipt(s) count other rows than those of the people who left."


def _about_memory(trials: Sequence[Trial]) -> str:
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
    if _about_level(trials):
        return _undecided(by_receipts), "receipts and processor time disagree"
    seconds = np.array([trial.processor_seconds[:n] for trial in trials])
    if seconds.mean() < _LEAST_SECONDS:
        return by_receipts, "the requests are too short to check it by processor time"
    timed = strength(seconds)
    exponents = by_receipts.exponent.value, timed.exponent.value
    is_opposite = {by_receipts.kind, timed.kind} == {"strong", "weak"}
    if is_opposite and abs(exponents[0] - exponents[1]) > _EXPONENTS_APART:
        return _undecided(by_receipts), (
            f"receipts and processor time disagree: {by_receipts.kind} against {timed.kind}, "
            f"exponents {exponents[0]:.2g} and {exponents[1]:.2g}"
        )
    if timed.kind == by_receipts.kind:
        return by_receipts, "processor time confirms it"
    return by_receipts, "processor time neither confirms nor refutes it"


def _undecided(by_receipts: Strength) -> Strength:
    return replace(by_receipts, kind="undecided")


def _about_level(trials: Sequence[Trial]) -> str:
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
