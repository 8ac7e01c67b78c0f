"""The monitor: decisions, people who leave the test set, retrains, what is kept of whom."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.metrics import accuracy_score

from letheon import InfluenceClassifier, NaiveUnlearner, select, state
from letheon.exceptions import CannotForgetError, GuaranteeWarning, NotFittedError, UnknownIdError
from letheon.measures import sape
from letheon.monitor import (
    Calibration,
    History,
    Limit,
    Monitor,
    MonitorTolerances,
    Reading,
    make_record,
)
from tests.monitor.drifters import (
    QUICK,
    DriftingPeople,
    Keeper,
    exact,
    keeper,
    make_people,
    regression,
)

PEOPLE = make_people()
_SO_FEW = (
    "the rehearsals prove a bound of 0.5 on the share of intervals with an unseen breach; "
    "0.05 is required"
)
LOOSE = MonitorTolerances(effectiveness=10.0, certifiability=1000.0)


def watched(people: DriftingPeople = PEOPLE, **settings: Any) -> Monitor:
    given: dict[str, Any] = {"calibration": QUICK, "retrain_with": people.training}
    model = keeper(people)
    return Monitor(model, people.X_test, people.y_test, random_state=0, **(given | settings))


def confidence(model: Any, X: NDArray[Any], y: NDArray[Any]) -> float:
    return float(model.predict_proba(X)[np.arange(len(y)), y].mean())


def test_an_exact_model_is_never_retrained_and_proved_fine() -> None:
    monitor = Monitor(exact(PEOPLE), PEOPLE.X_test, PEOPLE.y_test)
    reading = monitor.forget([3, 4])
    assert reading.decision == "keep"
    assert reading.proxies == {"effectiveness": 0.0, "certifiability": 0.0}
    assert {m.basis for m in reading.measures.values()} == {"by proof"}
    assert monitor.limits == {}


def test_an_exact_model_that_loses_its_proof_must_be_retrained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitor = Monitor(exact(PEOPLE), PEOPLE.X_test, PEOPLE.y_test, on_breach="advise")
    monkeypatch.setattr(NaiveUnlearner, "_make_guarantee", Keeper._make_guarantee)
    reading = monitor.forget([3])
    assert reading.decision == "retrain"
    assert "the guarantee was exact and is empirical now" in reading.reasons


def test_a_reading_counts_what_happened() -> None:
    monitor = watched(tolerances=LOOSE)
    monitor.forget([1])
    reading = monitor.forget([3, 4, 3])
    n_rows = int(np.isin(PEOPLE.ids, [3, 4]).sum())
    assert (reading.request, reading.n_people, reading.since_retrain) == (2, 2, 3)
    assert reading.n_rows == n_rows
    assert reading.rows_left == monitor.model.n_rows_ == len(monitor._rows or [])
    assert reading.n_test == len(PEOPLE.y_test)


def test_the_survey_proxy_without_rehearsals() -> None:
    """c = e = 1: the estimate is the score itself, never below what one row can change."""
    monitor = watched(calibration=None, tolerances=LOOSE)
    model = monitor.model
    model.estimator_.coef_ = model.estimator_.coef_ * 0.1
    before = confidence(keeper(PEOPLE), PEOPLE.X_test, PEOPLE.y_test)
    now = confidence(model, PEOPLE.X_test, PEOPLE.y_test)
    reading = monitor.forget([5])
    assert reading.metric == pytest.approx(now)
    assert reading.metric_retrained == pytest.approx(before)
    assert reading.proxies["effectiveness"] == pytest.approx(abs(now - before))
    assert reading.proxies["certifiability"] == pytest.approx(sape(now, before))


def test_the_survey_proxy_is_blind_to_a_model_that_does_nothing() -> None:
    tolerances = MonitorTolerances(effectiveness=0.03, certifiability=2.0)
    survey = watched(calibration=None, tolerances=tolerances)
    survey_decisions = {survey.forget([who]).decision for who in range(20)}
    ours = watched(tolerances=tolerances)
    our_decisions = {ours.forget([who]).decision for who in range(20)}
    assert survey_decisions == {"keep"}
    assert "retrain" in our_decisions


@pytest.mark.parametrize("given", ["left out", "others", "text"])
def test_ids_that_are_not_the_models_are_refused(given: str) -> None:
    """A forgotten person would stay in the rows, and be trained on again."""
    people = PEOPLE._replace(ids=np.random.default_rng(0).permutation(len(PEOPLE.y)))
    rows: dict[str, tuple[Any, ...]] = {
        "left out": (people.X, people.y),
        "others": (people.X, people.y, people.ids + 1),
        "text": (people.X, people.y, people.ids.astype(str)),
    }
    with pytest.raises((ValueError, TypeError), match="ids"):
        watched(people, retrain_with=rows[given])


def test_rows_in_another_order_are_fine() -> None:
    order = np.random.default_rng(0).permutation(len(PEOPLE.y))
    monitor = watched(retrain_with=tuple(part[order] for part in PEOPLE.training))
    monitor.forget([3])
    monitor.retrain()
    assert 3 not in monitor.model.ids_


def test_test_ids_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match="test_ids"):
        watched(test_ids=[str(at) for at in range(len(PEOPLE.y_test))])


def test_test_labels_that_the_model_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="no label in y_test"):
        Monitor(exact(PEOPLE), PEOPLE.X_test, PEOPLE.y_test + 7)


def test_a_model_that_was_not_fitted_is_refused() -> None:
    with pytest.raises(NotFittedError):
        Monitor(clone(keeper(PEOPLE)), PEOPLE.X_test, PEOPLE.y_test)


def test_what_cannot_forget_is_refused() -> None:
    with pytest.raises(CannotForgetError):
        Monitor(exact(PEOPLE).estimator_, PEOPLE.X_test, PEOPLE.y_test)


def test_an_empty_request_changes_nothing_but_the_history() -> None:
    monitor = watched(tolerances=LOOSE)
    digest = monitor.model.digest()
    reading = monitor.forget([])
    assert (reading.n_people, reading.n_rows, reading.decision) == (0, 0, "keep")
    assert monitor.model.digest() == digest


def test_a_person_with_test_rows_only_leaves_them() -> None:
    test_ids = 1000 + np.arange(len(PEOPLE.y_test))
    monitor = watched(test_ids=test_ids, tolerances=LOOSE)
    digest = monitor.model.digest()
    reading = monitor.forget([1003])
    assert (reading.n_people, reading.n_rows) == (1, 0)
    assert reading.n_test == len(test_ids) - 1
    assert monitor.model.digest() == digest
    assert monitor.forget([1004, 5]).rows_left < len(PEOPLE.y)


@pytest.mark.parametrize(
    "tolerances", [MonitorTolerances(certifiability=None), MonitorTolerances()]
)
def test_a_model_that_answers_nan_is_retrained(tolerances: MonitorTolerances) -> None:
    monitor = watched(tolerances=tolerances)
    monitor.model.estimator_.coef_ = np.full_like(monitor.model.estimator_.coef_, np.nan)
    reading = monitor.forget([1])
    assert reading.retrained
    assert "cannot be judged" in reading.reasons[0]
    assert reading.truth == {}
    assert np.isfinite(monitor.model.predict_proba(PEOPLE.X_test)).all()


def test_a_tolerance_below_the_noise_of_training_is_said() -> None:
    model = InfluenceClassifier(l2=0.01, sigma=20.0).fit(PEOPLE.X, PEOPLE.y, ids=PEOPLE.ids)
    with pytest.warns(GuaranteeWarning, match="no retrain can meet"):
        Monitor(
            model,
            PEOPLE.X_test,
            PEOPLE.y_test,
            retrain_with=PEOPLE.training,
            calibration=None,
            tolerances=MonitorTolerances(effectiveness=1e-9, certifiability=None),
        )


def test_rehearsals_ask_one_by_one_however_many_people_there_are() -> None:
    """Real requests are of one person; a batch would hide what the first of them does."""
    for n_people in (50, 400, 100_000):
        requests = Calibration().make_requests(n_people, "uniform")
        assert requests.batch == 1
        assert len(requests.sizes(n_people)) <= 40


def test_a_large_model_is_retrained_after_as_many_people_as_were_rehearsed() -> None:
    calibration = replace(QUICK, n_requests=4, horizon=0.5)
    monitor = watched(tolerances=LOOSE, calibration=calibration)
    monitor.limits = {n: replace(limit, factor=1e-9) for n, limit in monitor.limits.items()}
    decisions = [monitor.forget([who]).decision for who in range(4)]
    assert decisions == ["keep", "keep", "keep", "retrain"]


def test_every_retrain_counts() -> None:
    monitor = watched(tolerances=LOOSE)
    monitor.retrain()
    monitor.forget([1])
    monitor.retrain()
    monitor.retrain()
    assert monitor.n_retrains == 3
    assert monitor.history.retrains == [1]


def test_an_empty_history_is_an_empty_frame() -> None:
    assert len(History().to_frame()) == 0


def test_a_rehearsal_that_fails_after_a_retrain_does_not_undo_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitor = watched(tolerances=LOOSE)
    monitor.forget([1])
    old = monitor.model

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr("letheon.monitor._calibrate.rehearse_stream", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        monitor.retrain()
    assert monitor.model is not old
    assert monitor.history[-1].retrained
    assert not monitor.is_due


def test_nothing_is_rehearsed_or_held_for_an_exact_model() -> None:
    monitor = Monitor(
        exact(PEOPLE),
        PEOPLE.X_test,
        PEOPLE.y_test,
        retrain_with=PEOPLE.training,
        hold_forgotten_until_retrain=True,
    )
    reading = monitor.forget([3])
    assert monitor.limits == {}
    assert monitor._forgotten is None
    assert monitor._interval.tally.n_rows == 0
    assert reading.proxies["efficiency"] > 0


def test_stored_outputs_stay_with_their_rows() -> None:
    """A model that did not move has not moved on the rows that stay either."""
    test_ids = np.arange(len(PEOPLE.y_test))
    monitor = watched(test_ids=test_ids, tolerances=LOOSE)
    monitor.forget([0, 5, 9])
    assert monitor._panel.compare_models(monitor.model)[2] == 0


def test_a_retrain_is_a_fresh_fit_of_the_remaining_rows() -> None:
    monitor = watched(tolerances=LOOSE)
    monitor.forget([1, 2])
    monitor.retrain()
    keep = ~np.isin(PEOPLE.ids, [1, 2])
    fresh = clone(monitor.model).set_params(random_state=0)
    fresh.fit(PEOPLE.X[keep], PEOPLE.y[keep], ids=PEOPLE.ids[keep])
    np.testing.assert_array_equal(
        monitor.model.predict_proba(PEOPLE.X_test), fresh.predict_proba(PEOPLE.X_test)
    )


def test_a_retrain_shows_the_truth_about_the_old_model() -> None:
    monitor = watched(tolerances=LOOSE, hold_forgotten_until_retrain=True, on_breach="advise")
    gone = np.isin(PEOPLE.ids, range(20))
    for who in range(0, 20, 5):
        monitor.forget(list(range(who, who + 5)))
    old = monitor.model
    reading = monitor.retrain()
    assert reading is not None
    assert reading.retrained
    test, left = (PEOPLE.X_test, PEOPLE.y_test), (PEOPLE.X[gone], PEOPLE.y[gone])
    effect = abs(confidence(old, *test) - confidence(monitor.model, *test))
    cert = sape(confidence(old, *left), confidence(monitor.model, *left))
    assert reading.truth["effectiveness"] == pytest.approx(effect)
    assert reading.truth["certifiability"] == pytest.approx(cert)


def test_a_retrain_raises_a_factor_that_was_too_small() -> None:
    monitor = watched(tolerances=LOOSE, hold_forgotten_until_retrain=True, on_breach="advise")
    monitor.limits = {n: Limit("share", 1e-9, 1e-6, 0.05) for n in monitor.limits}
    monitor.forget([0, 1, 2])
    monitor.forget([3, 4, 5])
    truth = monitor.retrain()
    assert truth is not None
    assert set(truth.truth) == {"effectiveness", "certifiability"}
    share = int(np.isin(PEOPLE.ids, range(6)).sum()) / len(PEOPLE.ids)
    for name, value in truth.truth.items():
        assert monitor.limits[name].factor == pytest.approx(value / share)


def test_a_rehearsal_after_a_retrain_sees_a_breach_that_was_missed() -> None:
    tolerances = MonitorTolerances(effectiveness=10.0, certifiability=1e-6)
    monitor = watched(tolerances=tolerances, on_breach="advise")
    monitor.limits["certifiability"] = Limit("share", 1e-9, 1e-6, 0.05)
    monitor.forget([1, 2, 3])
    monitor.retrain()
    assert monitor.limits["certifiability"].factor > 1e-6


def test_a_stretch_starts_anew_after_a_retrain() -> None:
    monitor = watched(tolerances=LOOSE)
    monitor.forget([1, 2])
    monitor.retrain()
    reading = monitor.forget([7])
    assert reading.since_retrain == 1
    assert reading.metric == reading.metric_retrained


def test_nothing_outlives_what_was_rehearsed() -> None:
    monitor = watched(tolerances=LOOSE, calibration=replace(QUICK, horizon=0.1))
    monitor.limits = {n: replace(limit, factor=1e-9) for n, limit in monitor.limits.items()}
    readings = [monitor.forget([who]) for who in range(12)]
    first = next(reading for reading in readings if reading.retrained)
    assert first.since_retrain == 6
    assert "the largest rehearsed share" in first.reasons[0]


def test_advice_leaves_the_model_alone() -> None:
    monitor = watched(tolerances=MonitorTolerances(certifiability=1e-9), on_breach="advise")
    model = monitor.model
    reading = monitor.forget([1])
    assert (reading.decision, reading.retrained) == ("retrain", False)
    assert monitor.is_due
    assert monitor.model is model


def test_a_forgotten_person_leaves_the_test_set() -> None:
    """Both performances are those of the rows that stay."""
    test_ids = np.arange(len(PEOPLE.y_test)) % 60
    monitor = watched(test_ids=test_ids, tolerances=LOOSE)
    start = monitor.model
    reading = monitor.forget([5, 7])
    stay = ~np.isin(test_ids, [5, 7])
    expected = confidence(start, PEOPLE.X_test[stay], PEOPLE.y_test[stay])
    assert reading.n_test == int(stay.sum())
    assert reading.metric == pytest.approx(expected)
    assert reading.metric_retrained == pytest.approx(expected)


def test_without_test_ids_no_row_leaves_the_test_set() -> None:
    reading = watched(tolerances=LOOSE).forget([0, 1])
    assert reading.n_test == len(PEOPLE.y_test)


def test_who_owns_the_whole_test_set_is_refused_before_anything_changes() -> None:
    monitor = watched(test_ids=[3] * len(PEOPLE.y_test), tolerances=LOOSE)
    with pytest.raises(ValueError, match="every row of the test set"):
        monitor.forget([3])
    assert 3 in monitor.model.ids_
    assert len(monitor.history) == 0


def test_a_refused_request_changes_nothing() -> None:
    monitor = watched(tolerances=LOOSE)
    rows = monitor._rows
    with pytest.raises(UnknownIdError):
        monitor.forget([3, 999])
    assert monitor._rows is rows
    assert len(monitor.history) == 0
    assert monitor._interval.tally.n_rows == 0


@pytest.mark.parametrize("holds", [False, True])
def test_what_is_kept_of_a_forgotten_person(holds: bool) -> None:
    """By default nothing: neither the row nor the id is in what would be saved."""
    people = make_people()
    people.X[people.ids == 7] = 1234.5678
    ids = people.ids + 1_000_003
    monitor = watched(
        people._replace(ids=ids), tolerances=LOOSE, hold_forgotten_until_retrain=holds
    )
    monitor.forget([1_000_010])
    rows = {"test": monitor._panel.rows, "rows": monitor._rows, "gone": monitor._forgotten}
    saved = state.encode([monitor.model, rows]) + repr(make_record(monitor)).encode()
    assert (np.float64(1234.5678).tobytes() in saved) is holds
    assert (np.int64(1_000_010).tobytes() in saved) is holds


def test_held_rows_go_with_the_retrain() -> None:
    monitor = watched(tolerances=LOOSE, hold_forgotten_until_retrain=True)
    monitor.forget([1])
    held = monitor._forgotten
    monitor.retrain()
    assert held is not None
    assert monitor._forgotten is None


def test_the_efficiency_is_scaled_by_the_rows() -> None:
    monitor = watched(tolerances=LOOSE)
    timed = monitor._interval.retrain_seconds
    reading = monitor.forget(list(range(10)))
    assert timed is not None
    expected = timed * reading.rows_left / len(PEOPLE.ids) / reading.seconds
    assert reading.proxies["efficiency"] == pytest.approx(expected)


def test_slow_removals_are_reported_but_no_reason_to_retrain() -> None:
    reading = watched(tolerances=replace(LOOSE, efficiency=1e12)).forget([1])
    assert reading.decision == "keep"
    assert any("faster than a retrain" in reason for reason in reading.reasons)


def test_a_certified_model_shows_its_budget_and_its_residual() -> None:
    model = InfluenceClassifier(l2=0.1, random_state=0).fit(PEOPLE.X, PEOPLE.y, ids=PEOPLE.ids)
    monitor = Monitor(
        model,
        PEOPLE.X_test,
        PEOPLE.y_test,
        retrain_with=PEOPLE.training,
        calibration=None,
        tolerances=replace(LOOSE, residual=1e-12),
        on_breach="advise",
    )
    reading = monitor.forget([1])
    assert reading.guarantee == "certified"
    assert reading.spent == model.guarantee_.spent
    assert reading.residual == pytest.approx(model.exact_residual() / model.n_rows_)
    assert "gradient per row" in reading.reasons[0]


def test_a_spent_budget_is_a_reason() -> None:
    model = InfluenceClassifier(l2=0.1, random_state=0).fit(PEOPLE.X, PEOPLE.y, ids=PEOPLE.ids)
    tolerances = replace(LOOSE, budget=1e-12)
    monitor = Monitor(
        model,
        PEOPLE.X_test,
        PEOPLE.y_test,
        retrain_with=PEOPLE.training,
        calibration=None,
        tolerances=tolerances,
    )
    reading = monitor.forget([1])
    assert "budget" in reading.reasons[0]
    assert reading.retrained


def test_rehearsals_leave_the_model_alone() -> None:
    model = keeper(PEOPLE)
    before = model.digest()
    Monitor(
        model,
        PEOPLE.X_test,
        PEOPLE.y_test,
        retrain_with=PEOPLE.training,
        calibration=Calibration(n_streams=1, n_requests=4, n_looks=2),
    )
    assert model.digest() == before


def test_rehearsals_are_repeatable() -> None:
    assert watched().limits == watched().limits


def test_a_regression_is_judged_by_r2() -> None:
    model = regression(PEOPLE)
    y_test = PEOPLE.X_test @ [1.0, 2.0, 3.0]
    monitor = Monitor(
        model,
        PEOPLE.X_test,
        y_test,
        retrain_with=(PEOPLE.X, PEOPLE.X @ [1.0, 2.0, 3.0], PEOPLE.ids),
        calibration=replace(QUICK, kinds=("uniform", "class")),
        tolerances=LOOSE,
    )
    assert monitor.forget([1]).metric == pytest.approx(model.score(PEOPLE.X_test, y_test))


def test_a_metric_of_your_own() -> None:
    monitor = watched(metric=accuracy_score, tolerances=LOOSE)
    expected = accuracy_score(PEOPLE.y_test, monitor.model.predict(PEOPLE.X_test))
    assert monitor.forget([1]).metric == expected


def test_an_approximate_model_needs_its_rows() -> None:
    with pytest.raises(ValueError, match="retrain_with"):
        Monitor(keeper(PEOPLE), PEOPLE.X_test, PEOPLE.y_test)


def test_rows_that_are_not_those_of_the_model_are_refused() -> None:
    with pytest.raises(ValueError, match="rows, but the model has"):
        watched(retrain_with=(PEOPLE.X[1:], PEOPLE.y[1:], PEOPLE.ids[1:]))


@pytest.mark.parametrize("settings", [{"on_breach": "panic"}, {"retrain_with": PEOPLE.X}])
def test_settings_that_mean_nothing(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"on_breach|retrain_with"):
        watched(**settings)


@pytest.mark.parametrize("bad", [{"effectiveness": 0.0}, {"budget": -1.0}, {"residual": np.nan}])
def test_tolerances_are_numbers_above_zero(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a number > 0"):
        MonitorTolerances(**bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"kinds": ()},
        {"kinds": "uniform"},
        {"n_streams": 0},
        {"horizon": 1.0},
        {"miss": 0.0},
        {"age": 1.0},
    ],
)
def test_rehearsals_of_nothing_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Calibration(**bad)


def test_a_history_is_a_frame_a_table_and_a_sentence() -> None:
    monitor = watched(tolerances=LOOSE)
    monitor.forget([1])
    monitor.forget([2])
    monitor.retrain()
    frame = monitor.history.to_frame()
    assert list(frame.index) == [1, 2]
    assert frame["retrained"].tolist() == [False, True]
    assert monitor.history.retrains == [2]
    assert monitor.__rich__().row_count == 2
    assert str(monitor) == "Keeper: 2 requests, 1 retrains; assumed: requests come uniformly"


def test_a_history_survives_json() -> None:
    monitor = watched(tolerances=LOOSE)
    monitor.forget([1])
    again = History([Reading.from_dict(values) for values in monitor.history.to_list()])
    assert again == monitor.history
    assert again[:1] == monitor.history[:1]
    assert str(again[0]).startswith("request 1: effectiveness ")


def test_a_failed_retrain_leaves_it_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = watched(tolerances=MonitorTolerances(certifiability=1e-9))

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr("letheon.monitor._panel.train_fresh", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        monitor.forget([1])
    assert monitor.is_due
    assert 1 not in monitor.model.ids_


def test_the_plot_shows_the_proxies_and_the_retrains() -> None:
    pytest.importorskip("matplotlib").use("agg")
    monitor = watched(tolerances=LOOSE)
    for who in range(3):
        monitor.forget([who])
    monitor.retrain()
    display = monitor.plot()
    np.testing.assert_array_equal(np.isnan(display.truths["effectiveness"]), [True, True, False])
    shown = [reading.proxies["effectiveness"] for reading in monitor.history]
    np.testing.assert_allclose(display.proxies["effectiveness"], shown)
    assert list(display.retrains) == [3]


def test_an_unknown_kind_is_refused_before_any_rehearsal() -> None:
    with pytest.raises(ValueError, match="kind='unifrom' is unknown"):
        Calibration(kinds=("uniform", "unifrom"))
    with pytest.raises(ValueError, match=r"a tuple of kinds: kinds=\('uniform',\)"):
        Calibration(kinds="uniform")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("miss", "notes"),
    [
        (0.05, (_SO_FEW,)),
        (0.6, ()),
    ],
)
def test_a_reading_says_when_rehearsals_prove_less_than_is_asked_for(
    miss: float, notes: tuple[str, ...]
) -> None:
    """Of three rehearsals one starts aged: a group of one proves 1 / 2."""
    monitor = watched(
        calibration=replace(QUICK, miss=miss),
        tolerances=MonitorTolerances(effectiveness=10.0, certifiability=None),
    )
    reading = monitor.forget([1])
    assert reading.reasons == ("within all tolerances", *notes, "assumed: requests come uniformly")
    assert [limit.miss for limit in monitor.limits.values()] == [0.5]


def test_two_tolerances_share_what_is_proved() -> None:
    assert "the rehearsals prove no bound" in str(watched(tolerances=LOOSE).forget([1]))


def test_test_rows_without_their_labels_are_counted() -> None:
    with pytest.raises(ValueError, match="X_test has 50 rows, but y_test has 4"):
        Monitor(exact(PEOPLE), PEOPLE.X_test, PEOPLE.y_test[:4])


def test_the_other_tolerances_are_refused_by_their_full_name() -> None:
    with pytest.raises(TypeError, match=r"not a letheon\.select.*Tolerances"):
        watched(tolerances=select.Tolerances())


def test_a_metric_that_is_no_function_is_refused_at_the_start() -> None:
    with pytest.raises(TypeError, match=r"such as sklearn\.metrics\.f1_score; got 'f1'"):
        watched(metric="f1")
