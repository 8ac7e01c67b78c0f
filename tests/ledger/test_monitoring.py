"""A monitor travels as bytes with a version: what comes back, what is refused, what is left."""

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from letheon import NaiveUnlearner, state
from letheon.data import Rows, as_ids
from letheon.exceptions import (
    CorruptFileError,
    NewerFormatError,
    UnknownIdError,
    UnsupportedStateError,
    UntrustedClassError,
)
from letheon.ledger import Ledger
from letheon.ledger.models.monitoring import (
    adopt_retrained,
    compute_policy_digest,
    forget_with_monitor,
    pack_monitor,
    unpack_monitor,
)
from letheon.monitor import Calibration, Monitor, MonitorTolerances, make_record
from tests.monitor.drifters import QUICK, Keeper, make_people, share_right
from tests.sharded.people import examples

PEOPLE = make_people(n_people=30, n_test=20)
LOOSE = MonitorTolerances(effectiveness=10.0, certifiability=1000.0)
STRICT = MonitorTolerances(effectiveness=1e-9, certifiability=1e-9)
# Told apart from everything else in the bytes.
NAMES = np.array([f"person-{n:03d}-{n * 7919 % 104729:06d}" for n in range(30)], dtype=object)
IDS = NAMES[PEOPLE.ids]
TEST_IDS = NAMES[:20]


def fitted(ids: Any = IDS, kind: type[NaiveUnlearner] = Keeper) -> Any:
    keep = np.isin(IDS, ids)
    return kind(LogisticRegression(), random_state=0).fit(
        PEOPLE.X[keep], PEOPLE.y[keep], ids=IDS[keep]
    )


def watched(model: Any = None, **settings: Any) -> Monitor:
    given: dict[str, Any] = {"tolerances": LOOSE, "calibration": None, **settings}
    return Monitor(
        fitted() if model is None else model,
        PEOPLE.X_test,
        PEOPLE.y_test,
        test_ids=TEST_IDS,
        retrain_with=(PEOPLE.X, PEOPLE.y, IDS),
        random_state=0,
        **given,
    )


def travelled(monitor: Monitor, trusted: Iterable[Any] = ()) -> Monitor:
    return unpack_monitor(pack_monitor(monitor), monitor.model, trusted=trusted)


def rows_left(gone: Iterable[str]) -> Rows:
    keep = ~np.isin(IDS, [*gone])
    return Rows(PEOPLE.X[keep], PEOPLE.y[keep], as_ids(IDS[keep]))


def traces(data: bytes, person: str) -> list[str]:
    """Return what of a person is in some bytes: the id, rows, test rows."""
    own = np.flatnonzero(person == IDS)
    markers = {"id": person.encode(), "id in UTF-16": person.encode("utf-16-le")}
    markers |= {f"row {at}": PEOPLE.X[at].tobytes() for at in own}
    markers |= {f"value {at}": PEOPLE.X[at, 1].tobytes() for at in own}
    markers |= {
        f"test row {at}": PEOPLE.X_test[at].tobytes() for at in np.flatnonzero(person == TEST_IDS)
    }
    return [name for name, marker in markers.items() if marker in data]


def test_everything_comes_back() -> None:
    monitor = watched(calibration=QUICK)
    monitor.forget(NAMES[[3, 4]])
    again = travelled(monitor)
    assert make_record(again) == make_record(monitor) | {"on_breach": "advise"}
    assert again.model is monitor.model
    assert pack_monitor(again) == pack_monitor(monitor)


@examples(8)
@given(
    requests=st.lists(st.integers(0, 29), min_size=1, max_size=6, unique=True),
    tolerances=st.sampled_from([LOOSE, STRICT]),
)
def test_a_monitor_that_travels_sees_what_one_sees_that_stays(
    requests: list[int], tolerances: MonitorTolerances
) -> None:
    stays = watched(tolerances=tolerances, on_breach="advise")
    moves = watched(tolerances=tolerances)
    for person in requests:
        reading = stays.forget([NAMES[person]])
        moves = travelled(moves)
        _, seen = forget_with_monitor(moves, [NAMES[person]])
        assert reading.proxies == seen.proxies | {"efficiency": reading.proxies["efficiency"]}
        assert (reading.decision, reading.reasons) == (seen.decision, seen.reasons)
    assert moves.model.digest() == stays.model.digest()


def test_it_only_advises() -> None:
    monitor = watched(tolerances=STRICT)
    monitor = travelled(monitor)
    model = monitor.model
    receipt, reading = forget_with_monitor(monitor, NAMES[[3]])
    while reading.decision == "keep":
        receipt, reading = forget_with_monitor(monitor, [monitor.model.ids_[0]])
    assert monitor.is_due
    assert not reading.retrained
    assert monitor.model is model
    assert receipt is not None
    assert receipt.n_rows == reading.n_rows


def test_nothing_of_a_forgotten_person_travels() -> None:
    monitor = watched(calibration=QUICK)
    before = pack_monitor(monitor)
    gone = NAMES[[3, 7, 25]]
    forget_with_monitor(monitor, gone)
    after = pack_monitor(monitor)
    assert [traces(after, person) for person in gone] == [[], [], []]
    # The search finds them where they are, and those who stay.
    assert all(len(traces(before, person)) >= 3 for person in gone)
    assert len(traces(after, NAMES[4])) >= 4


def test_nothing_of_a_person_travels_who_left_by_a_retrain() -> None:
    monitor = watched()
    forget_with_monitor(monitor, NAMES[[3]])
    gone = NAMES[[5, 6]]
    rows = rows_left(NAMES[[3, 5, 6]])
    model = fitted(rows.ids.to_array())
    assert len(traces(pack_monitor(monitor), gone[0])) >= 3
    reading = adopt_retrained(monitor, model, rows, seconds=1.0)
    assert reading is not None
    assert (reading.n_people, reading.retrained) == (2, True)
    data = pack_monitor(monitor)
    assert [traces(data, person) for person in gone] == [[], []]
    assert unpack_monitor(data, model).history[-1] == reading


def test_a_retrain_alone_shows_the_truth() -> None:
    monitor = watched(tolerances=STRICT)
    monitor = travelled(monitor)
    forget_with_monitor(monitor, NAMES[[3]])
    rows = rows_left(NAMES[[3]])
    reading = adopt_retrained(monitor, fitted(rows.ids.to_array()), rows)
    assert reading is not None
    assert reading.request == 1
    assert reading.truth["effectiveness"] > 0


def test_an_exact_model_without_rows_travels_too() -> None:
    model = fitted(kind=NaiveUnlearner)
    monitor = Monitor(model, PEOPLE.X_test, PEOPLE.y_test, test_ids=TEST_IDS)
    monitor = travelled(monitor)
    _, reading = forget_with_monitor(monitor, NAMES[[3]])
    assert (reading.decision, reading.proxies["certifiability"]) == ("keep", 0.0)
    rows = rows_left(NAMES[[3, 8]])
    adopt_retrained(monitor, fitted(rows.ids.to_array(), NaiveUnlearner), rows)
    assert traces(pack_monitor(monitor), NAMES[8]) == []


def test_who_is_not_held_changes_nothing() -> None:
    monitor = watched()
    before = pack_monitor(monitor)
    with pytest.raises(UnknownIdError):
        forget_with_monitor(monitor, ["unknown"])
    assert pack_monitor(monitor) == before


def test_an_erasure_does_not_wait_for_a_metric() -> None:
    fails = [False]

    def fragile(y_true: Any, y_pred: Any) -> float:
        if fails[0]:
            raise ZeroDivisionError
        return share_right(y_true, y_pred)

    monitor = watched(metric=fragile)
    fails[0] = True
    receipt, reading = forget_with_monitor(monitor, NAMES[[3]])
    assert receipt is not None
    assert receipt.n_ids == 1
    assert reading.decision == "retrain"
    assert NAMES[3] not in monitor.model.ids_


def test_a_metric_of_scikit_learn_travels() -> None:
    again = travelled(watched(metric=f1_score))
    assert again._judge.metric is f1_score


def test_another_metric_must_be_trusted() -> None:
    monitor = watched(metric=share_right)
    with pytest.raises(UntrustedClassError, match="share_right"):
        travelled(monitor)
    for trusted in (share_right, "tests.monitor.drifters.share_right"):
        assert travelled(monitor, [trusted])._judge.metric is share_right


def test_a_metric_without_a_name_is_refused() -> None:
    with pytest.raises(UnsupportedStateError):
        pack_monitor(watched(metric=lambda y_true, y_pred: float(np.mean(y_true == y_pred))))


def test_files_that_the_ledger_does_not_know_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="create the monitor without folder"):
        pack_monitor(watched(folder=tmp_path / "own"))


def test_a_monitor_that_keeps_people_is_refused() -> None:
    with pytest.raises(ValueError, match="keeps rows of erased people"):
        pack_monitor(watched(hold_forgotten_until_retrain=True))


def test_a_model_of_other_people_is_refused() -> None:
    data = pack_monitor(watched())
    with pytest.raises(ValueError, match="differ from the ids of the model"):
        unpack_monitor(data, fitted(NAMES[:29]))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda parts: parts | {"format": 2}, NewerFormatError),
        (lambda parts: {k: v for k, v in parts.items() if k != "rows"}, CorruptFileError),
        (lambda parts: parts | {"more": 1}, CorruptFileError),
        (lambda parts: [parts], CorruptFileError),
        (lambda parts: {}, CorruptFileError),
    ],
)
def test_bytes_that_make_no_sense_are_refused(change: Any, error: type[Exception]) -> None:
    monitor = watched()
    data = state.encode(change(state.decode(pack_monitor(monitor))))
    with pytest.raises(error):
        unpack_monitor(data, monitor.model)


@cache
def packed() -> tuple[Monitor, bytes]:
    monitor = watched()
    return monitor, pack_monitor(monitor)


@given(place=st.integers(min_value=0), bit=st.integers(0, 7))
def test_an_altered_byte_is_refused(place: int, bit: int) -> None:
    monitor, data = packed()
    altered = bytearray(data)
    altered[place % len(data)] ^= 1 << bit
    with pytest.raises((CorruptFileError, NewerFormatError)):
        unpack_monitor(bytes(altered), monitor.model)


def digest_by_hand(monitor: Monitor) -> str:
    tolerances = {
        "effectiveness": monitor.tolerances.effectiveness,
        "certifiability": monitor.tolerances.certifiability,
        "efficiency": None,
        "budget": 1.0,
        "residual": None,
    }
    metric = "mean probability of the true label"
    policy = {"calibration": None, "metric": metric, "tolerances": dict(sorted(tolerances.items()))}
    text = json.dumps(policy, separators=(",", ":"))
    return hashlib.sha256(b"letheon/monitor-policy/v1\x00" + text.encode()).hexdigest()


def test_the_policy_is_digested_as_written_down() -> None:
    monitor = watched()
    assert compute_policy_digest(monitor) == digest_by_hand(monitor)


def test_the_digest_of_a_policy_tells_nothing_of_rows_and_requests() -> None:
    monitor = watched(calibration=QUICK)
    before = compute_policy_digest(monitor)
    forget_with_monitor(monitor, NAMES[[3]])
    assert compute_policy_digest(monitor) == before
    assert compute_policy_digest(travelled(monitor)) == before
    assert compute_policy_digest(watched(fitted(kind=NaiveUnlearner), calibration=QUICK)) == before


def test_every_setting_is_part_of_the_policy() -> None:
    calibrations: list[Calibration | None] = [
        None,
        QUICK,
        replace(QUICK, miss=0.06),
        replace(QUICK, requests={"candidates": np.int64(50)}),
    ]
    exact = fitted(kind=NaiveUnlearner)  # nothing is rehearsed
    items = [
        *(
            compute_policy_digest(watched(exact, calibration=calibration))
            for calibration in calibrations
        ),
        compute_policy_digest(watched(exact, tolerances=replace(LOOSE, budget=0.5))),
        compute_policy_digest(watched(exact, metric=f1_score)),
    ]
    assert len(set(items)) == len(items)


def test_a_calibration_that_cannot_be_written_down_is_refused() -> None:
    requests = {"candidates": object()}
    monitor = watched(fitted(kind=NaiveUnlearner), calibration=replace(QUICK, requests=requests))
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        compute_policy_digest(monitor)


def predicate(ledger: Ledger, sequence: int) -> Any:
    envelope = json.loads(ledger.certificates.envelope(sequence))
    return json.loads(base64.b64decode(envelope["payload"]))["predicate"]


def test_advice_becomes_a_certified_retrain(tmp_path: Path) -> None:
    monitor = watched(tolerances=STRICT)
    policy = {"sha256": compute_policy_digest(monitor)}
    with Ledger.create(tmp_path / "ledger", name="test") as ledger:
        ledger.models.register(
            monitor.model,
            PEOPLE.X,
            PEOPLE.y,
            ids=IDS,
            name="model",
            monitor=monitor,
            trusted=[Keeper],
        )
        ledger.requests.submit(NAMES[[3, 4]], model="model", verified=True)
        ledger.run_once(force=True)
        ledger.run_once()  # a retraining without a request; the queue is empty
        erased, retrained = predicate(ledger, 1), predicate(ledger, 2)
        n_rows = len(rows_left(NAMES[[3, 4]]))
        assert ledger.models.load("model").n_rows_ == n_rows
    assert erased["monitor"] == {
        "decision": "retrain-due",
        "lastRetrainSequence": 0,
        "policy": policy,
    }
    assert (retrained["monitor"]["decision"], retrained["method"]["name"]) == (
        "retrained",
        "retrain",
    )
    assert retrained["monitor"]["policy"] == policy
    files = [file for file in (tmp_path / "ledger").rglob("*") if file.is_file()]
    assert [file.name for file in files if traces(file.read_bytes(), NAMES[3])] == []
