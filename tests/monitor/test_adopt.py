"""A model that was retrained elsewhere: as if the monitor had done it, or refused."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from letheon.exceptions import GuaranteeWarning, UnknownIdError
from letheon.monitor import Monitor, MonitorTolerances, make_record
from letheon.monitor._panel import train_fresh
from tests.monitor.drifters import QUICK, exact, keeper, make_people, share_right

PEOPLE = make_people(n_people=30, n_test=20)
LOOSE = MonitorTolerances(effectiveness=10.0, certifiability=1000.0)


def watched(**settings: Any) -> Monitor:
    given: dict[str, Any] = {"tolerances": LOOSE, "calibration": QUICK, **settings}
    return Monitor(
        keeper(PEOPLE),
        PEOPLE.X_test,
        PEOPLE.y_test,
        test_ids=np.arange(20),
        retrain_with=PEOPLE.training,
        on_breach="advise",
        random_state=0,
        **given,
    )


def fresh(gone: Iterable[int], model: Any = None) -> Any:
    """A model trained afresh without some people."""
    keep = ~np.isin(PEOPLE.ids, [*gone])
    unfitted = keeper(PEOPLE) if model is None else model
    return unfitted.fit(PEOPLE.X[keep], PEOPLE.y[keep], ids=PEOPLE.ids[keep])


def without_times(monitor: Monitor) -> Any:
    record = make_record(monitor)
    record["stretch"].pop("retrain_seconds")
    for reading in record["history"]:
        for name in ("seconds", "retrain_seconds"):
            reading.pop(name)
        reading["proxies"].pop("efficiency", None)
    return record


def test_it_is_the_same_as_a_retrain_of_its_own() -> None:
    ours, theirs = watched(), watched()
    for monitor in (ours, theirs):
        monitor.forget([1, 2])
    ours.retrain()
    assert theirs._rows is not None
    retrained = train_fresh(theirs.model, theirs._rows)[0]
    assert theirs.adopt(retrained, seconds=1.0) == theirs.history[-1]
    assert without_times(ours) == without_times(theirs)
    assert ours.model.digest() == theirs.model.digest()
    assert theirs.history[-1].retrain_seconds == 1.0
    assert theirs.history[-1].truth["effectiveness"] >= 0


def test_people_may_leave_with_the_retrain() -> None:
    monitor = watched()
    monitor.forget([1])
    reading = monitor.adopt(fresh([1, 2, 3]), [2, 3, 2], seconds=2.0)
    assert reading is not None
    assert reading == monitor.history[-1]
    n_rows = int(np.isin(PEOPLE.ids, [2, 3]).sum())
    assert (reading.request, reading.n_people, reading.n_rows) == (2, 2, n_rows)
    assert (reading.since_retrain, reading.decision, reading.retrained) == (0, "retrain", True)
    assert reading.proxies == {"effectiveness": 0.0, "certifiability": 0.0}
    assert reading.truth == {}
    assert not monitor.is_due
    assert monitor._rows is not None
    assert not {1, 2, 3} & {*monitor._rows.ids.to_list(), *monitor._panel.rows.ids.to_list()}


def test_the_limits_do_not_learn_from_people_who_were_never_forgotten() -> None:
    monitor = watched(calibration=replace(QUICK, refresh=False))
    limits = dict(monitor.limits)
    monitor.adopt(fresh([2, 3]), [2, 3])
    assert monitor.limits == limits


def test_without_a_time_the_last_one_counts_by_rows() -> None:
    monitor = watched()
    monitor._interval.retrain_seconds, n_before = 6.0, len(PEOPLE.ids)
    monitor.adopt(fresh(range(5, 15)), range(5, 15))
    n_after = int((~np.isin(PEOPLE.ids, range(5, 15))).sum())
    assert monitor._interval.retrain_seconds == pytest.approx(6.0 * n_after / n_before)


def test_it_goes_on_from_there() -> None:
    monitor = watched()
    monitor.adopt(fresh([2]), [2])
    reading = monitor.forget([3])
    assert (reading.request, reading.since_retrain) == (2, 1)
    assert reading.metric == reading.metric_retrained  # a keeper does not move


@pytest.mark.parametrize(
    ("gone", "named"), [([2], []), ([], [2]), ([2, 3], [2]), ([3], [2])], ids=str
)
def test_a_model_of_other_people_is_refused(gone: list[int], named: list[int]) -> None:
    monitor = watched()
    before, model = make_record(monitor), monitor.model
    with pytest.raises(ValueError, match="differ from the ids of the model"):
        monitor.adopt(fresh(gone), named)
    assert make_record(monitor) == before
    assert monitor.model is model


def test_unknown_people_are_refused() -> None:
    with pytest.raises(UnknownIdError):
        watched().adopt(fresh([2]), [2, 99])


def test_an_exact_model_needs_no_rows_here() -> None:
    monitor = Monitor(exact(PEOPLE), PEOPLE.X_test, PEOPLE.y_test)
    with pytest.raises(ValueError, match="differ from the remaining ids"):
        monitor.adopt(fresh([4, 5], exact(PEOPLE)), [4])
    reading = monitor.adopt(fresh([4], exact(PEOPLE)), [4])
    assert reading is not None
    assert reading.n_rows == int((PEOPLE.ids == 4).sum())
    assert monitor.adopt(fresh([4], exact(PEOPLE))) == replace(
        reading, truth={"effectiveness": 0.0}
    )


def test_before_any_request_there_is_no_reading() -> None:
    monitor = watched()
    assert monitor.adopt(fresh([])) is None
    assert monitor.n_retrains == 1


def test_a_metric_that_fails_does_not_keep_the_new_model_out() -> None:
    fails = [False]

    def fragile(y_true: Any, y_pred: Any) -> float:
        if fails[0]:
            raise ZeroDivisionError
        return share_right(y_true, y_pred)

    monitor = watched(metric=fragile)
    monitor.forget([1])
    fails[0] = True
    with pytest.warns(GuaranteeWarning, match="could not be recalibrated"):
        reading = monitor.adopt(model := fresh([1, 2]), [2])
    assert monitor.model is model
    assert reading is not None
    assert np.isnan(reading.metric)
    assert monitor.adopt(fresh([1, 2])) is not None
    assert monitor.n_retrains == 2


def test_what_a_lazy_model_leaves_for_later_is_part_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitor = watched()
    done: list[Any] = []
    monkeypatch.setattr(monitor.model, "_finish_pending", lambda: done.append(monitor.model))
    monitor.forget([3])
    assert done[-1] is monitor.model


def test_a_request_is_timed_to_the_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the receipt says: it says 0 seconds here, and the request takes 1 and 5 more."""
    monitor, seconds, left = watched(), 0.0, 0.0
    forget, predict = monitor.model.forget, monitor.model.predict

    def put_off(ids: Any) -> Any:
        nonlocal seconds, left
        seconds, left = seconds + 1, 5.0
        return replace(forget(ids), seconds=0.0)

    def answer(X: Any) -> Any:
        nonlocal seconds, left
        seconds, left = seconds + 0.5 + left, 0.0
        return predict(X)

    monkeypatch.setattr(time, "perf_counter", lambda: seconds)
    monkeypatch.setattr(monitor.model, "forget", put_off)
    monkeypatch.setattr(monitor.model, "predict", answer)
    assert monitor.forget([3]).seconds == 1 + 5


def test_the_receipt_of_the_model_is_at_hand() -> None:
    monitor = watched()
    assert monitor.receipt is None
    reading = monitor.forget([3])
    assert monitor.receipt is not None
    assert (monitor.receipt.n_rows, monitor.receipt.method) == (reading.n_rows, "keeper")
