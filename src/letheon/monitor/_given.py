"""What a caller gives to a monitor, checked: rows, ids, tolerances, a folder, a retrained model."""

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from letheon.base import ForgetMixin, require_known
from letheon.data import Ids, Rows, as_ids
from letheon.evaluation import require_function
from letheon.exceptions import (
    CannotForgetError,
    EmptyModelError,
    GuaranteeWarning,
    IdsTypeError,
    warn_caller,
)
from letheon.monitor._calibrate import Calibration, measure_truth
from letheon.monitor._limits import Limit
from letheon.monitor._panel import Panel, Removal, held_rows, positions_of, used_up_classes
from letheon.monitor._reading import Reading, guarantee_of
from letheon.monitor._store import Folder


def require_model(model: Any) -> None:
    """Raise unless this is a fitted model that can forget."""
    if not callable(getattr(model, "forget", None)):
        raise CannotForgetError(
            f"{type(model).__name__} has no forget; wrap it: NaiveUnlearner(estimator)"
        )
    try:
        check_is_fitted(model)
    except NotFittedError:
        raise NotFittedError(
            f"this {type(model).__name__} is not fitted; a monitor watches a trained model"
        ) from None


def require_metric(metric: Any) -> None:
    """Raise unless this is a function of true and predicted values, or nothing.

    Of a loss the change counts as well, so it is welcome.
    """
    if metric is not None:
        require_function(metric)


def training_rows(model: Any, given: tuple[Any, ...] | None) -> Rows | None:
    """Return the training rows to hold; an exact method can do without."""
    if given is None:
        if guarantee_of(model)[0] == "exact":
            return None
        raise ValueError(
            "proxies of a method that is not exact are calibrated by retraining: give the training "
            "rows, retrain_with=(X, y, ids)"
        )
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise ValueError("retrain_with must be (X, y) or (X, y, ids)")
    X, y, ids = given if len(given) == 3 else (*given, None)
    rows = held_rows(X, y, ids)
    if hasattr(model, "n_rows_") and len(rows) != model.n_rows_:
        raise ValueError(f"retrain_with has {len(rows)} rows and the model holds {model.n_rows_}")
    same_people(model, rows, were_named=ids is not None)
    return rows


def same_people(model: Any, rows: Rows, *, were_named: bool) -> None:
    """Raise unless the rows belong to the people of the model, as far as that can be told.

    Otherwise a forgotten person would stay in these rows, and be trained on again.
    """
    held = ids_of(model)
    if held is None:
        return
    _same_kind(held, rows.ids, "retrain_with")
    theirs, ours = held.to_list(), rows.ids.to_list()
    if theirs == ours:
        return
    if not were_named:
        raise ValueError(
            "the model was fitted with ids of its own; give them too: retrain_with=(X, y, ids)"
        )
    # A model may hold rows in another order, and some only tell each person once.
    if not isinstance(model, ForgetMixin):
        theirs, ours = sorted(set(theirs)), sorted(set(ours))  # type: ignore[assignment, type-var]
    if sorted(theirs) != sorted(ours):
        raise ValueError("the ids of retrain_with are not those that the model holds")


def ids_of(model: Any) -> Ids | None:
    """Return the ids of a model's rows, or of its people; None if it does not tell."""
    if isinstance(model, ForgetMixin):
        return model._held_ids()
    return as_ids(model.ids_) if hasattr(model, "ids_") else None


def test_rows(model: Any, X: Any, y: Any, ids: Any) -> Rows:
    """Return the test rows; their ids and labels must be of the model's kind."""
    n_rows, n_labels = np.shape(X)[:1], np.shape(y)[:1]
    if n_rows and n_labels and n_rows != n_labels:
        raise ValueError(f"X_test has {n_rows[0]} rows and y_test {n_labels[0]}")
    rows, held = held_rows(X, y, ids), ids_of(model)
    if ids is not None and held is not None:
        _same_kind(held, rows.ids, "test_ids")
    assert rows.y is not None
    if is_classifier(model) and not np.isin(rows.y, np.asarray(model.classes_)).any():
        raise ValueError(
            f"no label of y_test is one of the model's: {np.unique(rows.y)[:5].tolist()} against "
            f"{np.asarray(model.classes_)[:5].tolist()}"
        )
    return rows


def in_training(people: Ids, panel: Panel, rows: Rows | None, model: Any) -> Ids:
    """Return those of the people whom the model must forget; raise if nobody knows one.

    Raised before anything changes: who is not among the rows held here would be trained on again,
    and who has test rows only is no business of the model.
    """
    held = {*(as_ids(model.ids_) if rows is None else rows.ids).to_list()}
    is_missing = np.array([who not in held for who in people.to_list()], bool)
    missing = people.take(np.flatnonzero(is_missing))
    outsiders = panel.owners(missing)
    if rows is not None:
        strange = [who not in outsiders for who in missing.to_list()]
        require_known(missing.take(np.flatnonzero(np.array(strange, bool))), rows.ids)
    return people.take(np.flatnonzero([who not in outsiders for who in people.to_list()]))


def warn_of_noise(panel: Panel, model: Any, twin: Any, tolerances: Mapping[str, float]) -> None:
    """Warn if two trainings on the same rows differ by more than a tolerance."""
    floor = measure_truth(panel, model, twin, panel.rows)
    for name, most in tolerances.items():
        gap = floor.get(name, math.nan)
        if not gap < most:
            warn_caller(
                f"the model and one that was trained afresh on the same rows differ by {gap:.3g} "
                f"in {name} on the test set, and {most:.3g} is tolerated: no retrain can hold "
                "that. Use a larger tolerance or less noise.",
                GuaranteeWarning,
            )


def require_classes(people: Ids, rows: Rows | None, model: Any) -> None:
    """Raise if no row of some class would be left: nothing is known of such a model."""
    if rows is None:
        return
    used_up = used_up_classes(model, rows, positions_of(rows, people)).tolist()
    if used_up:
        raise EmptyModelError(
            f"these people own the last training rows of class {', '.join(map(repr, used_up))}: "
            "the model could not be retrained or judged as it was rehearsed. Nothing was changed. "
            "Train a model without this class, and start a new monitor for it."
        )


def assumptions(calibration: Calibration | None) -> tuple[str, ...]:
    """Return what a decision takes for granted about the requests to come, in words."""
    if calibration is None:
        return ("nothing was rehearsed: the survey's proxy misses most breaches",)
    return (f"assumed: {calibration.assume}",) if calibration.assume else ()


def proof_gap(limits: Mapping[str, Limit], calibration: Calibration | None) -> tuple[str, ...]:
    """Return a note if the rehearsals were too few to prove the misses that are accepted."""
    proved = min(1.0, sum(limit.miss for limit in limits.values()))
    if calibration is None or proved <= calibration.miss:
        return ()
    known = "nothing" if proved == 1 else f"only that a breach is unseen in at most {proved:.2g}"
    return (
        f"so few rehearsals prove {known} of such stretches; {calibration.miss:g} is asked for",
    )


def _same_kind(held: Ids, given: Ids, what: str) -> None:
    if held.kind != given.kind:
        raise IdsTypeError(
            f"the model holds {held.kind} ids and {what} has {given.kind} ids; 1 is not '1'"
        )


def new_folder(folder: str | os.PathLike[str] | None) -> Folder | None:
    """Return the folder, unless another monitor lives there."""
    if folder is None:
        return None
    place = Folder(folder)
    if place.manifest.exists():
        raise FileExistsError(
            f"{place.manifest} is there already; continue with Monitor.load({str(folder)!r}), or "
            "choose another folder"
        )
    return place


def adopt(monitor: Any, model: Any, ids: Any, seconds: float | None) -> Reading | None:
    """Put a retrained model in the place of the one watched; see `Monitor.adopt`."""
    require_model(model)
    people = as_ids(ids).distinct()
    panel, rows = _left_of(monitor, people, model)
    # The old model still holds those who leave now: it says nothing about what `forget` did.
    truth = {} if len(people) else _truth(monitor, model)
    n_rows, n_people = monitor._n_rows(), monitor._stretch.n_people
    timed, rows_then = monitor._stretch.retrain_seconds, monitor._stretch.tally.rows_then
    n_left = len(rows) if rows is not None else int(model.n_rows_)
    if seconds is None and timed is not None:
        seconds = timed * n_left / rows_then
    monitor._rows = rows
    monitor._replace_model(model, panel, truth, seconds)
    if len(people):
        monitor.n_retrains += 1
        _note_leaving(monitor, len(people), n_rows - n_left, seconds)
    else:
        monitor._note_retrain(truth, seconds)
    _refresh(monitor, n_people)
    return monitor.history[-1] if len(monitor.history) else None


def _left_of(monitor: Any, people: Ids, model: Any) -> tuple[Panel, Rows | None]:
    """Return test and training rows without these people; changes nothing."""
    panel, rows, leaving = monitor._panel, monitor._rows, people
    if len(people):
        leaving = in_training(people, panel, rows, monitor.model)
        panel = panel.without(people)
        rows = None if rows is None else rows.without(positions_of(rows, leaving))
    _require_left(monitor.model, model, rows, leaving)
    return panel.renewed(model), rows


def _require_left(old: Any, model: Any, rows: Rows | None, leaving: Ids) -> None:
    """Raise unless the model holds those who are left, as far as that can be told."""
    if rows is not None:
        same_people(model, rows, were_named=True)
        return
    before, now = ids_of(old), ids_of(model)
    if before is None or now is None:
        return
    if set(now.to_list()) != set(before.to_list()) - set(leaving.to_list()):
        raise ValueError("the ids of the retrained model are not those that are left")


def _truth(monitor: Any, model: Any) -> dict[str, float]:
    """Return the truth about the old model; a metric that fails tells none."""
    with contextlib.suppress(Exception):
        return measure_truth(monitor._panel, monitor.model, model, monitor._gone)
    return {}


def _note_leaving(monitor: Any, n_people: int, n_rows: int, seconds: float | None) -> None:
    """Add the reading of people who left by the retrain: nothing of them is in the model."""
    metrics: Sequence[float] = (math.nan, math.nan)
    with contextlib.suppress(Exception):
        metrics = monitor._panel.look(monitor.model)[:2]
    reading = monitor._reading(n_people, Removal(n_rows, seconds or 0.0), metrics)
    monitor.history = monitor.history.with_(
        replace(
            reading,
            proxies=dict.fromkeys(monitor.tolerances.watched(), 0.0),
            decision="retrain",
            reasons=("retrained without them",),
            retrained=True,
            retrain_seconds=seconds,
        )
    )


def _refresh(monitor: Any, n_people: int) -> None:
    """Recalibrate; the model is in place already, so a failure is only said."""
    try:
        monitor._refresh(n_people)
    except Exception as error:  # noqa: BLE001  (a rehearsal runs the caller's own functions)
        warn_caller(
            f"the limits could not be recalibrated after a retrain: {error!r}", GuaranteeWarning
        )
    finally:
        monitor._commit()
