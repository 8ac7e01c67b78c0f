"""Monitors that are stored with the versions of a model in a ledger.

A monitor only recommends a retraining. The ledger retrains the model in a batch of its own.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from letheon import state
from letheon.data import Rows, as_ids
from letheon.exceptions import CorruptFileError, NewerFormatError
from letheon.ledger.schemas import Watch
from letheon.monitor import (
    Monitor,
    Reading,
    assumptions,
    check_same_ids,
    choose_judge,
    make_record,
    read_calibration,
    restore,
)
from letheon.receipt import Receipt

FORMAT = 1
_PARTS = {"format", "record", "rows", "metric"}
_DOMAIN = b"letheon/monitor-policy/v1\0"


def pack_monitor(monitor: Monitor) -> bytes:
    """Return a monitor without its model, as bytes.

    The bytes contain the remaining training and test rows, so they must be encrypted. They contain
    no rows or ids of forgotten people.

    Raises
    ------
    ValueError
        The monitor writes files, or keeps forgotten people until the next retraining. A ledger
        could not certify their erasure.
    UnsupportedStateError
        The metric has no importable name, such as a lambda.
    """
    if monitor._folder is not None:
        raise ValueError(
            f"this monitor writes to {monitor._folder.path}, and the ledger does not erase "
            "that folder; create the monitor without folder"
        )
    if monitor.hold_forgotten_until_retrain:
        raise ValueError(
            "hold_forgotten_until_retrain=True keeps rows of erased people, so the ledger "
            "could not certify their erasure; create the monitor without it"
        )
    rows = {"test": monitor._panel.rows, "training": monitor._rows, "forgotten": None}
    record = make_record(monitor) | {"on_breach": "advise"}
    judge = monitor._judge
    # Only a custom metric is stored.
    metric = None if judge == choose_judge(monitor.model, None) else judge.metric
    return state.encode({"format": FORMAT, "record": record, "rows": rows, "metric": metric})


def unpack_monitor(data: bytes, model: Any, *, trusted: Iterable[Any] = ()) -> Monitor:
    """Return a monitor that `pack_monitor` packed, joined with its model.

    The monitor does not retrain the model by itself.

    Parameters
    ----------
    data : bytes
        Result of `pack_monitor`.
    model : fitted estimator
        The model of the same version.
    trusted : iterable of class, function or str
        Additional classes and functions that may be used, such as the metric.

    Raises
    ------
    CorruptFileError, NewerFormatError, UntrustedClassError
        See `letheon.state.decode`.
    ValueError
        The ids of the model differ from the ids of the monitor.
    """
    parts = state.decode(data, trusted=trusted, max_memory=state.UNLIMITED)
    if not isinstance(parts, dict) or "format" not in parts:
        raise CorruptFileError(
            "the data does not contain a monitor: expected a dictionary with a format number"
        )
    if parts["format"] != FORMAT:
        raise NewerFormatError(
            f"the monitor has format {parts['format']}, but this version of letheon reads {FORMAT}"
        )
    if parts.keys() != _PARTS:
        raise CorruptFileError(
            f"the monitor has the parts {', '.join(sorted(map(str, parts)))}; expected "
            f"{', '.join(sorted(_PARTS))}"
        )
    training: Rows | None = parts["rows"]["training"]
    if training is not None:
        check_same_ids(model, training, were_named=True)
    monitor = Monitor.__new__(Monitor)
    restore(monitor, None, model, parts["rows"], parts["record"], parts["metric"])
    return monitor


def forget_with_monitor(monitor: Monitor, ids: Any) -> tuple[Receipt | None, Reading]:
    """Forget ids and observe the model; return the receipt and the reading.

    The receipt is None if the ids have test rows only.

    An error in the metric does not stop the erasure: the ids are forgotten, and the reading
    recommends a retraining.
    """
    n_readings = len(monitor.history)
    try:
        monitor.forget(ids)
    except Exception:
        # Without a new reading no id was forgotten.
        if len(monitor.history) == n_readings:
            raise
    return monitor.receipt, monitor.history[-1]


def adopt_retrained(
    monitor: Monitor, model: Any, rows: Rows, *, seconds: float | None = None
) -> Reading | None:
    """Make a monitor continue with a model that was retrained on these rows.

    Ids that are not in the rows are removed from the monitor. Return the reading of the new model.
    """
    ids = as_ids(monitor.model.ids_) if monitor._rows is None else monitor._rows.ids
    people = ids.distinct()
    gone = people.take(np.flatnonzero(~rows.index.find(people).has_rows))
    return monitor.adopt(model, gone.to_array(), seconds=seconds)


def compute_policy_digest(monitor: Monitor) -> str:
    """Return the SHA-256 of the tolerances and the calibration of a monitor.

    The digest is ``SHA-256("letheon/monitor-policy/v1" | 0 | JSON of tolerances, calibration and
    metric)``; the JSON has sorted keys and no spaces. The digest does not depend on rows, requests
    or seeds.
    """
    calibration = monitor.calibration
    policy = {
        "tolerances": asdict(monitor.tolerances),
        "calibration": None if calibration is None else calibration.to_dict(),
        "metric": monitor._judge.name,
    }
    text = json.dumps(policy, sort_keys=True, separators=(",", ":"), default=_to_python)
    return hashlib.sha256(_DOMAIN + text.encode()).hexdigest()


def _to_python(value: Any) -> Any:
    """Convert a NumPy number or array to Python numbers."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(
        f"the calibration contains {value!r} of type {type(value).__name__}, which cannot be "
        "written as JSON; use numbers and strings"
    )


def unpack_watch(packed: bytes, trusted: Iterable[str]) -> Watch:
    """Return metric, tolerances, limits and assumptions of a packed monitor."""
    record = state.decode(packed, trusted=trusted, max_memory=state.UNLIMITED)["record"]
    limits = {
        name: {key: limit[key] for key in ("score", "factor", "floor", "miss")}
        for name, limit in record["limits"].items()
    }
    tolerances = {
        name: float(value) for name, value in record["tolerances"].items() if value is not None
    }
    metric = record["metric"] or (
        "mean probability of the true label" if record["uses_probability"] else "performance"
    )
    taken = assumptions(read_calibration(record["calibration"])) if limits else ()
    return Watch(metric, tolerances, limits, "; ".join(taken))
