"""What a monitor takes for granted, whether it saves anything, and classes that run out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from letheon.datasets import Requests
from letheon.exceptions import EmptyModelError
from letheon.ledger.models.monitoring import compute_policy_digest, pack_monitor, unpack_monitor
from letheon.monitor import Calibration, Limit, Monitor, MonitorTolerances
from letheon.monitor._reading import explain_no_saving
from letheon.monitor._store import read_calibration
from tests.monitor.drifters import QUICK, Keeper, exact, keeper, make_people

PEOPLE = make_people()
WORDS = "requests come uniformly"
LOOSE = MonitorTolerances(effectiveness=10.0, certifiability=1000.0)


def watched(**settings: Any) -> Monitor:
    given: dict[str, Any] = {"calibration": QUICK, "retrain_with": PEOPLE.training}
    model = keeper(PEOPLE)
    return Monitor(model, PEOPLE.X_test, PEOPLE.y_test, random_state=0, **(given | settings))


@pytest.mark.parametrize("words", ["", "  "])
def test_a_kind_is_left_out_for_a_reason_only(words: str) -> None:
    with pytest.raises(ValueError, match=r"omits class, adaptive, worst.*assume="):
        Calibration(kinds=("uniform",), assume=words)


def test_all_kinds_need_no_reason() -> None:
    assert Calibration().assume == ""
    assert "assume" not in Calibration().to_dict()


def test_an_assumption_is_a_text() -> None:
    with pytest.raises(TypeError, match="assume must be a str"):
        Calibration(assume=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("tolerances", [LOOSE, MonitorTolerances(effectiveness=1e-9)])
def test_every_decision_quotes_the_assumption(tolerances: MonitorTolerances) -> None:
    monitor = watched(tolerances=tolerances)
    reading = monitor.forget([3])
    assert f"assumed: {WORDS}" in reading.reasons
    assert WORDS in str(reading)
    assert WORDS in str(monitor)


def test_a_decision_without_rehearsals_says_so() -> None:
    reading = watched(calibration=None, tolerances=LOOSE).forget([3])
    assert any("no rehearsals" in reason for reason in reading.reasons)


def test_a_proved_decision_assumes_nothing() -> None:
    monitor = Monitor(exact(PEOPLE), PEOPLE.X_test, PEOPLE.y_test, calibration=None)
    assert monitor.forget([3]).reasons == ("within all tolerances",)


def test_the_assumption_travels_and_is_part_of_the_policy(tmp_path: Path) -> None:
    monitor = watched(tolerances=LOOSE)
    again = unpack_monitor(pack_monitor(monitor), keeper(PEOPLE), trusted=[Keeper])
    assert again.calibration == monitor.calibration
    monitor.save(tmp_path / "watched")
    loaded = Monitor.load(tmp_path / "watched", trusted=[Keeper])
    assert loaded.calibration == monitor.calibration
    before = compute_policy_digest(monitor)
    monitor.calibration = replace(QUICK, assume="another reason")
    assert compute_policy_digest(monitor) != before


def test_a_monitor_of_an_earlier_version_says_that_no_reason_was_asked() -> None:
    saved = QUICK.to_dict()
    del saved["assume"]
    calibration = read_calibration(saved)
    assert calibration is not None
    assert "uniform (saved before a reason was required)" in calibration.assume
    assert read_calibration(None) is None


def test_a_monitor_that_always_retrains_says_that_it_saves_nothing() -> None:
    monitor = watched(tolerances=MonitorTolerances(effectiveness=1e-9, certifiability=None))
    reading = monitor.forget([3])
    assert reading.retrained
    assert any("saves nothing" in reason for reason in reading.reasons)
    assert "saves nothing" in str(monitor)


def test_a_monitor_that_keeps_does_not() -> None:
    monitor = watched(tolerances=LOOSE)
    readings = [monitor.forget([who]) for who in range(3)]
    assert not any("saves nothing" in reason for r in readings for reason in r.reasons)


@pytest.mark.parametrize(
    ("n_retrains", "trainings", "is_said"),
    [(10, 1, True), (9, 1, False), (5, 2, True), (4, 2, False)],
)
def test_saving_is_counted_in_trainings(n_retrains: int, trainings: int, is_said: bool) -> None:
    retrained = [True] * 3 + [True] * n_retrains + [False] * (10 - n_retrains)
    room = {"effectiveness": Limit("share", 1.0, 1e-3, 0.1)}
    assert ("saves nothing" in explain_no_saving(retrained, room, trainings)) == is_said
    assert explain_no_saving(retrained[-9:], room, 2) == ""


@pytest.mark.parametrize(("stretch", "is_said"), [(0.0, True), (1.0, True), (1.5, False)])
def test_rehearsed_stretches_are_counted_too(stretch: float, is_said: bool) -> None:
    limits = {"effectiveness": Limit("share", 1.0, 1e-3, 0.1, stretch=stretch)}
    assert ("saves nothing" in explain_no_saving([], limits, 2)) == is_said


def three_classes() -> tuple[Monitor, dict[int, list[int]]]:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [20, 20, 4])
    X = rng.normal(size=(44, 2)) + np.c_[y, -y]
    model = Keeper(LogisticRegression(), random_state=0).fit(X, y, ids=np.arange(44))
    calibration = Calibration(n_streams=2, n_requests=6, n_looks=2, horizon=0.4)
    monitor = Monitor(
        model,
        X[::2],
        y[::2],
        retrain_with=(X, y, np.arange(44)),
        calibration=calibration,
        tolerances=LOOSE,
        random_state=0,
    )
    return monitor, {c: np.flatnonzero(y == c).tolist() for c in (0, 1, 2)}


def test_a_stream_that_uses_up_a_class_ends_before_anything_changes() -> None:
    monitor, of_class = three_classes()
    for who in of_class[2][:3]:
        monitor.forget([who])
    before = monitor.model.digest(), len(monitor.history), str(monitor._interval)
    with pytest.raises(EmptyModelError, match=r"all training rows of class 2.*Nothing was changed"):
        monitor.forget([of_class[2][3], of_class[0][0]])
    assert (monitor.model.digest(), len(monitor.history), str(monitor._interval)) == before
    assert of_class[2][3] in monitor._rows.ids.to_list()  # type: ignore[union-attr]
    assert monitor.forget([of_class[0][0]]).request == 4


def test_rehearsals_never_use_up_a_class() -> None:
    """Two rows of a class, and streams that go for it: the monitor starts all the same."""
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1], [30, 2])
    X = rng.normal(size=(32, 2)) + np.c_[y, y]
    model = Keeper(LogisticRegression(), random_state=0).fit(X, y)
    calibration = Calibration(n_streams=2, n_requests=4, n_looks=1, horizon=0.4, age=0.6)
    monitor = Monitor(model, X, y, retrain_with=(X, y), calibration=calibration, random_state=0)
    assert set(monitor.limits) == {"effectiveness", "certifiability"}


@pytest.mark.soak
def test_only_a_rehearsed_kind_is_watched() -> None:
    """The finding: uniform rehearsals alone keep a model that an adaptive stream has broken."""
    tolerances = MonitorTolerances(effectiveness=0.02, certifiability=2.0)
    few = replace(QUICK, n_streams=8, n_requests=8, n_looks=4)
    every = Calibration(n_streams=8, n_requests=8, n_looks=4, horizon=0.2)
    keeps = []
    for calibration in (few, every):
        monitor = watched(tolerances=tolerances, calibration=calibration)
        stream = Requests(kind="adaptive", n=10).stream(monitor.model, *PEOPLE.training, seed=3)
        keeps.append(sum(monitor.forget(ids).decision == "keep" for ids in stream))
    assert keeps[1] < keeps[0]
