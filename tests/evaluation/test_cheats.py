"""The report names unlearners that cheat, or lists what was not tested."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

import letheon
from letheon import Evaluation
from letheon.evaluation import SAME
from letheon.select import Tolerances, choose
from tests.evaluation import cheats
from tests.evaluation.cheats import FIT_SECONDS, HonestMethod

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 6))
Y = (X[:, 0] + 0.5 * X[:, 1] > 0).astype(int)
_ROWS = RNG.normal(size=(150, 6))
ROWS: dict[str, Any] = {
    "ordinary": cheats.TimedDummy(),
    "test": (_ROWS, (_ROWS[:, 0] + 0.5 * _ROWS[:, 1] > 0).astype(int)),
}
NOT_TESTED = "Forgetting was not tested"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    HonestMethod.diary.clear()
    cheats.WithSleeper.stop.clear()
    yield
    cheats.Remembers.memory.clear()
    cheats.SharesResults.memory.clear()
    cheats.WithSleeper.stop.set()
    for child in cheats.WithProcess.children:
        child.kill()
        child.wait()
    cheats.WithProcess.children.clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models say how long things take."""
    for name in ("perf_counter", "process_time", "thread_time"):
        monkeypatch.setattr(time, name, lambda: HonestMethod.seconds)
    monkeypatch.setattr("letheon.evaluation._clock._read_delay", lambda: 0.0)


def evaluate(model: Any, requests: Any = 3, seeds: int = 2, **arguments: Any) -> Evaluation:
    return letheon.evaluate(model, (X, Y), requests, seeds=seeds, **ROWS, **arguments)


def speed_up(evaluation: Evaluation) -> float:
    return evaluation.measures[SAME]["efficiency"].value


def first_lines(evaluation: Evaluation) -> str:
    """Return what stands above the table."""
    return str(evaluation).partition("  measure")[0]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    "cheat",
    [
        cheats.Lazy(),
        cheats.LazyUntilDigest(),
        cheats.LazyUntilDecision(),
        cheats.LazyUntilSecondAnswer(),
        cheats.SlowAfterFit(),
    ],
    ids=lambda cheat: type(cheat).__name__,
)
def test_a_lazy_method_gains_nothing(cheat: Any) -> None:
    """It used to be a hundred times faster than a retrain."""
    evaluation = evaluate(cheat, canaries=False)
    assert speed_up(evaluation) == pytest.approx(1, rel=0.05)
    assert "(forget returns after 10 ms" in str(evaluation)
    assert evaluation.seconds["returned"].value == pytest.approx(cheats.CALL_SECONDS)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    "cheat", [cheats.LazyUntilScore(), cheats.LazyUntilPickled(), cheats.LazyForOtherRows()]
)
def test_work_that_is_put_off_further_is_counted_and_named(cheat: Any) -> None:
    evaluation = evaluate(cheat, canaries=False)
    assert "The method deferred 2 s of work beyond its first predictions" in first_lines(evaluation)
    for trial in evaluation.trials:
        assert sum(trial.forget_seconds) > FIT_SECONDS


@pytest.mark.usefixtures("clock")
def test_a_method_cannot_stop_the_clock() -> None:
    assert speed_up(evaluate(cheats.StopsTime(), canaries=False)) == pytest.approx(1, rel=0.05)


@pytest.mark.usefixtures("clock")
def test_a_slow_baseline_is_named() -> None:
    evaluation = evaluate(cheats.SlowRetrain(), canaries=False)
    assert "Every retrain of the same algorithm took at least" in first_lines(evaluation)


@pytest.mark.usefixtures("clock")
def test_a_lazy_fit_is_timed_too() -> None:
    class LazyFit(cheats.Lazy):
        def fit(self, X: Any, y: Any, *, ids: Any = None) -> Any:
            super().fit(X, y, ids=ids)
            HonestMethod.seconds -= 0.9 * FIT_SECONDS
            self.is_old_ = True
            return self

    evaluation = evaluate(LazyFit(), canaries=False)
    assert evaluation.seconds["fit"].value == pytest.approx(1.1 * FIT_SECONDS, rel=0.05)


@pytest.mark.usefixtures("clock")
def test_slow_answers_later_hide_nothing() -> None:
    """What a repeated answer takes is not counted; so this one makes the repeated one slow."""

    class Slow(cheats.Lazy):
        def predict_proba(self, X: Any) -> Any:
            if self.n_requests_ and not self.is_old_:
                self.take(FIT_SECONDS)
            return super().predict_proba(X)

    assert speed_up(evaluate(Slow(), canaries=False)) < 1.5


def timing_text(evaluation: Evaluation) -> str:
    return next(line for line in evaluation.fairness if line.startswith("A request"))


def test_the_report_describes_the_end_of_a_request() -> None:
    class NoDigest(HonestMethod):
        digest: Any = None

    evaluation = evaluate(HonestMethod(), canaries=False)
    assert "until the model has predicted twice and computed its digest" in timing_text(evaluation)
    assert "Not included: work that is deferred to calls other" in str(evaluation)
    text = timing_text(evaluate(NoDigest(), canaries=False))
    assert "has its digest" not in text
    assert "has no digest" in text


@pytest.mark.parametrize("cheat", [cheats.Keeps, cheats.Half, cheats.Noisy, cheats.Remembers])
def test_people_who_were_kept_are_found(cheat: Any) -> None:
    evaluation = evaluate(cheat(kind="empirical"), seeds=1)
    text = first_lines(evaluation)
    assert "(found)" in text
    assert "WARNING: An attack found people who should be forgotten: canary " in text


def test_nothing_is_proved_where_people_were_found() -> None:
    """The bytes are those of a fresh fit, and the answers are not."""
    evaluation = evaluate(cheats.Remembers(kind="exact"), seeds=1)
    assert evaluation.equal_digests is True
    assert evaluation.measures[SAME]["output consistency"].basis == "measured"


@pytest.mark.usefixtures("clock")
def test_a_model_that_keeps_everything_is_not_chosen() -> None:
    """It is a hundred times faster than the honest one, and within all tolerances."""
    comparison = choose(
        (X, Y),
        candidates=[cheats.Keeps(), HonestMethod()],
        tolerances=Tolerances(certifiability=None),
        requests=2,
        cv=2,
        **ROWS,
    )
    assert comparison.best is not None
    assert comparison.best.candidate == "HonestMethod"
    assert "Forgetting was tested by canary backdoor" in comparison.reason
    assert "the canary test found people who should be forgotten" in comparison.reason


def test_a_digest_proves_nothing_where_answers_differ() -> None:
    evaluation = evaluate(cheats.FalseDigest(kind="exact"), requests=20, seeds=1, canaries=False)
    assert evaluation.equal_digests is False
    assert "(proof)" not in str(evaluation)
    assert "The method has its own digest" in str(evaluation)


@pytest.mark.parametrize("cheat", [cheats.ClonesItself(), cheats.ClonesAnother()])
def test_what_clones_something_else_is_refused(cheat: Any) -> None:
    with pytest.raises(TypeError, match=r"clone of a Clones.* returned"):
        evaluate(cheat)


@pytest.mark.usefixtures("clock")
def test_receipts_of_other_rows_are_named() -> None:
    evaluation = evaluate(cheats.CountsNoRows(), canaries=False)
    assert "6 receipt(s) state a wrong number of removed rows" in first_lines(evaluation)
    assert [trial.rows_left for trial in evaluation.trials] == [(299, 298, 297)] * 2


def test_noise_on_answers_is_seen() -> None:
    evaluation = evaluate(cheats.Noisy(), seeds=1, canaries=False)
    assert "Repeated predictions of the same rows differ" in first_lines(evaluation)


@pytest.mark.usefixtures("clock")
def test_results_that_are_remembered_are_seen() -> None:
    evaluation = evaluate(cheats.SharesResults(), requests=6, canaries=False)
    assert "the method caches results outside the model" in first_lines(evaluation)


@pytest.mark.usefixtures("clock")
def test_receipts_that_count_too_little_are_named() -> None:
    evaluation = evaluate(cheats.ClaimsLittle(), requests=16, seeds=1, canaries=False)
    assert "Receipts count 0.001 of a retrain" in first_lines(evaluation)
    assert evaluation.strength is not None
    assert evaluation.strength.kind == "undecided"
    assert "receipts and processor time disagree" in str(evaluation)


@pytest.mark.usefixtures("clock")
def test_receipts_that_hide_growing_work_are_named() -> None:
    evaluation = evaluate(cheats.ClaimsConstant(), requests=24, seeds=1, canaries=False)
    assert evaluation.strength is not None
    assert evaluation.strength.kind == "undecided"
    assert "receipts and processor time disagree: strong against weak" in str(evaluation)


@pytest.mark.usefixtures("clock")
def test_requests_too_short_to_time_are_not_held_against_receipts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The overhead of a call is most of what they take."""
    monkeypatch.setattr(cheats, "FIT_SECONDS", 1e-5)
    monkeypatch.setattr(cheats, "CALL_SECONDS", 1e-5)
    evaluation = evaluate(cheats.ClaimsConstant(), requests=24, seeds=1, canaries=False)
    assert evaluation.strength is not None
    assert evaluation.strength.kind == "strong"
    assert "requests are too short to check it with processor time" in str(evaluation)


def test_the_report_says_what_was_not_tested() -> None:
    evaluation = evaluate(cheats.Keeps(), requests=1, seeds=1, canaries=False)
    assert f"{NOT_TESTED}: no attack ran." in first_lines(evaluation)


def test_an_attack_without_power_is_no_test() -> None:
    """A constant model contains no personal data, before or after the request."""
    evaluation = evaluate(letheon.NaiveUnlearner(DummyClassifier()), requests=1, seeds=1)
    assert f"{NOT_TESTED}: no attack had any power." in first_lines(evaluation)


def test_canaries_that_cannot_be_planted_are_named() -> None:
    class Refuses(HonestMethod):
        def forget(self, ids: Any) -> Any:
            if len(ids) > 1:
                raise ValueError("one at a time")
            return super().forget(ids)

    evaluation = evaluate(Refuses(), seeds=1)
    assert f"{NOT_TESTED}: no attack ran. Failed: canary backdoor" in first_lines(evaluation)
    assert evaluation.failed_attacks["canary backdoor"] == "ValueError: one at a time"
