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
from tests.evaluation.cheats import Honest
from tests.evaluation.test_cheats import clean, evaluate, first_lines, timing_said

__all__ = ["clean"]


@pytest.mark.parametrize("cheat", [cheats.Threaded, cheats.RawThread, cheats.LatePool])
def test_a_thread_is_waited_for_on_the_clock_and_named(cheat: Any) -> None:
    found = evaluate(cheat(), requests=2, seeds=1, canaries=False)
    is_working = False
    for entry in Honest.diary:
        assert not (is_working and entry == "baseline"), "it was timed beside the thread"
        is_working = entry == "begin" or (is_working and entry != "end")
    assert "2 of 2 requests left work behind" in first_lines(found)
    for trial in found.trials:
        assert min(trial.forget_seconds) > 0.03
        assert min(map(sub, trial.forget_seconds, trial.returned_seconds)) > 0


def test_a_thread_that_was_joined_is_not_left_behind() -> None:
    assert evaluate(cheats.JoinsThread(), canaries=False).warnings == ()


def test_threads_from_before_are_not_blamed_on_the_method() -> None:
    class Works(Honest):
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
        found = evaluate(Works(), seeds=1, canaries=False)
    finally:
        stop.set()
        other.join()
    assert "left work behind" not in first_lines(found)
    assert "Threads that ran before the evaluation used" in first_lines(found)


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
            background.other_processor_time(),
        )
        background.wait_until_idle({}, 10.0)
        for _ in range(10):
            background.processor_time()
        looked = time.thread_time() - begin
        assert looked > 0.03
        assert abs(background.processor_time() - own) < 0.2 * looked
        assert abs(background.other_processor_time() - others) < 0.2 * looked
    finally:
        stop.set()
        for thread in [*idle, late]:
            thread.join()


def test_a_process_is_waited_for_and_named() -> None:
    found = evaluate(cheats.WithProcess(), requests=1, seeds=1, canaries=False)
    assert "requests left work behind" in first_lines(found)
    assert found.trials[0].forget_seconds[0] > 0.2


def test_what_never_ends_is_given_up_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("letheon.evaluation._clock._LEAST_WAIT_SECONDS", 0.05)
    found = evaluate(cheats.WithEndlessProcess(), requests=2, seeds=1, canaries=False)
    assert "longer than they were waited for" in first_lines(found)
    assert "NOT timed to its end" in timing_said(found)


def test_an_idle_thread_is_no_work_but_is_mentioned() -> None:
    found = evaluate(cheats.WithSleeper(), requests=2, seeds=1, canaries=False)
    assert found.warnings == ()
    assert any("stayed alive, idle" in line for line in found.fairness)


def test_an_honest_method_gets_no_warning() -> None:
    found = evaluate(Honest(), requests=16)
    assert found.warnings == ()
    said = "Forgetting was tested by canary backdoor (not found), canary u-lira (not found)"
    assert said in first_lines(found)
    assert "people who leave one by one were not tested" in first_lines(found)
    assert "strong by the receipts" in str(found)
    assert letheon.Evaluation.from_dict(found.to_dict()) == found
