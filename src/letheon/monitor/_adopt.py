"""A model that was retrained elsewhere takes the place of the one that is watched."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from letheon.data import Ids, Rows, as_ids
from letheon.exceptions import GuaranteeWarning, warn_caller
from letheon.monitor._asked import Asked
from letheon.monitor._calibrate import measured
from letheon.monitor._given import ids_of, in_training, require_model, same_people
from letheon.monitor._panel import Panel, positions_of
from letheon.monitor._reading import Reading

__all__ = ["adopt"]


def adopt(monitor: Any, model: Any, ids: Any, seconds: float | None) -> Reading | None:
    """Put a retrained model in the place of the one watched; see `Monitor.adopt`."""
    require_model(model)
    people = as_ids(ids).distinct()
    panel, rows = _left_of(monitor, people, model)
    # The old model still holds those who leave now: it says nothing about what `forget` did.
    truth = {} if len(people) else _truth(monitor, model)
    n_rows, n_people = monitor._n_rows(), monitor._stretch.n_people
    timed, rows_then = monitor._stretch.retrain_seconds, monitor._stretch.tally.rows_then
    monitor._raise_limits(truth)
    vars(monitor).update(model=model, _panel=panel, _rows=rows, _gone=None)
    if seconds is None and timed is not None:
        seconds = timed * monitor._n_rows() / rows_then
    monitor._stretch = monitor._new_stretch(seconds)
    monitor.n_retrains += 1
    if len(people):
        _note_leaving(monitor, len(people), n_rows - monitor._n_rows(), seconds)
    elif len(monitor.history):
        last = replace(monitor.history[-1], retrained=True, retrain_seconds=seconds, truth=truth)
        monitor.history = monitor.history[:-1].with_(last)
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
        return measured(monitor._panel, monitor.model, model, monitor._gone)
    return {}


def _note_leaving(monitor: Any, n_people: int, n_rows: int, seconds: float | None) -> None:
    """Add the reading of people who left by the retrain: nothing of them is in the model."""
    metrics: Sequence[float] = (math.nan, math.nan)
    with contextlib.suppress(Exception):
        metrics = monitor._panel.look(monitor.model)[:2]
    reading = monitor._reading(n_people, Asked(n_rows, seconds or 0.0), metrics)
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
