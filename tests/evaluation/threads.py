"""Threads and processes that a model leaves working; `test_threads` runs this on its own.

The clock looks at all threads of a process. Other tests leave some in theirs.
"""

import threading
import time
from operator import sub
from typing import Any

import pytest

import letheon
from letheon.evaluation._clock import _Background, _Clocks
from tests.evaluation import cheats
from tests.evaluation.cheats import HonestMethod
from tests.evaluation.test_cheats import clean, evaluate, first_lines, timing_text

__all__ = ["clean"]


@pytest.mark.parametrize("cheat", [cheats.Threaded, cheats.RawThread, cheats.LatePool])
def test_a_thread_is_waited_for_on_the_clock_and_named(cheat: Any) -> None:
    evaluation = evaluate(cheat(), requests=2, seeds=1, canaries=False)
    is_working = False
    for entry in HonestMethod.diary:
        assert not (is_working and entry == "baseline"), "it was timed beside the thread"
        is_working = entry == "begin" or (is_working and entry != "end")
    assert "2 of 2 requests left background work" in first_lines(evaluation)
    for trial in evaluation.trials:
        assert min(trial.forget_seconds) > 0.03
        assert min(map(sub, trial.forget_seconds, trial.returned_seconds)) > 0


def test_a_thread_that_was_joined_is_not_left_behind() -> None:
    assert evaluate(cheats.JoinsThread(), canaries=False).warnings == ()


def test_threads_from_before_are_not_blamed_on_the_method() -> None:
    class Works(HonestMethod):
        def train(self) -> None:
            cheats.burn(0.05)
            super().train()

    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            cheats.burn(0.01)

    other = threading.Thread(target=work)
    other.start()
    try:
        evaluation = evaluate(Works(), seeds=1, canaries=False)
    finally:
        stop.set()
        other.join()
    assert "left background work" not in first_lines(evaluation)
    assert "Threads that were started before the evaluation used" in first_lines(evaluation)


def test_looking_at_threads_is_not_counted_as_work() -> None:
    """With many idle threads from before, looking at them takes longer than a short request."""
    stop = threading.Event()
    idle = [threading.Thread(target=stop.wait) for _ in range(100)]
    for thread in idle:
        thread.start()
    try:
        background = _Background(_Clocks.read())
        late = threading.Thread(target=stop.wait)
        late.start()
        begin, own, others = (
            time.thread_time(),
            background.processor_time(),
            background.other_time(),
        )
        background.wait_until_idle({}, 10.0)
        for _ in range(10):
            background.processor_time()
        looked = time.thread_time() - begin
        assert looked > 0.03
        assert abs(background.processor_time() - own) < 0.2 * looked
        assert abs(background.other_time() - others) < 0.2 * looked
    finally:
        stop.set()
        for thread in [*idle, late]:
            thread.join()


def test_a_process_is_waited_for_and_named() -> None:
    evaluation = evaluate(cheats.WithProcess(), requests=1, seeds=1, canaries=False)
    assert "requests left background work" in first_lines(evaluation)
    assert evaluation.trials[0].forget_seconds[0] > 0.2


def test_endless_work_is_given_up_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("letheon.evaluation._clock._LEAST_WAIT_SECONDS", 0.05)
    evaluation = evaluate(cheats.WithEndlessProcess(), requests=2, seeds=1, canaries=False)
    assert "exceeded the time limit" in first_lines(evaluation)
    assert "NOT timed until its end" in timing_text(evaluation)


def test_an_idle_thread_is_no_work_but_is_mentioned() -> None:
    evaluation = evaluate(cheats.WithSleeper(), requests=2, seeds=1, canaries=False)
    assert evaluation.warnings == ()
    assert any("stayed alive, but idle" in line for line in evaluation.fairness)


def test_an_honest_method_gets_no_warning() -> None:
    evaluation = evaluate(HonestMethod(), requests=16)
    assert evaluation.warnings == ()
    text = "Forgetting was tested by canary backdoor (not found), canary u-lira (not found)"
    assert text in first_lines(evaluation)
    assert "single removals were not tested" in first_lines(evaluation)
    assert "strong, according to receipts" in str(evaluation)
    assert letheon.Evaluation.from_dict(evaluation.to_dict()) == evaluation
