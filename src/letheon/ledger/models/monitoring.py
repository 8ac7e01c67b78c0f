"""A monitor that travels with the versions of a model in a ledger.

It decides nothing by itself there: it advises, and a retrain is a batch like any other.
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
    """Return everything of a monitor but its model, as bytes.

    They hold the training and test rows of people who are still held, so they must be sealed; of
    those who were forgotten they hold neither row nor id. Nobody is kept until a retrain.

    Raises
    ------
    ValueError
        The monitor keeps files of its own, or forgotten people until the next retrain: a ledger
        could not say that they are erased.
    UnsupportedStateError
        Its metric cannot be named, such as a lambda.
    """
    if monitor._folder is not None:
        raise ValueError(
            f"this monitor writes to {monitor._folder.path}, which the ledger does not erase; "
            "make it without folder"
        )
    if monitor.hold_forgotten_until_retrain:
        raise ValueError(
            "hold_forgotten_until_retrain=True keeps people who are erased, and a ledger cannot "
            "certify that; make the monitor without it"
        )
    rows = {"test": monitor._panel.rows, "training": monitor._rows, "forgotten": None}
    record = make_record(monitor) | {"on_breach": "advise"}
    judge = monitor._judge
    # Only a metric of the caller's own is kept.
    metric = None if judge == choose_judge(monitor.model, None) else judge.metric
    return state.encode({"format": FORMAT, "record": record, "rows": rows, "metric": metric})


def unpack_monitor(data: bytes, model: Any, *, trusted: Iterable[Any] = ()) -> Monitor:
    """Return the monitor that `pack` described, around its model; it only advises.

    Parameters
    ----------
    data : bytes
        What `pack` returned.
    model : fitted estimator
        The model of the same version.
    trusted : iterable of class, function or str
        What may be named besides letheon's and scikit-learn's own: the metric, for one.

    Raises
    ------
    CorruptFileError, NewerFormatError, UntrustedClassError
        As `letheon.state.decode`.
    ValueError
        The model does not hold the people of the monitor's rows.
    """
    parts = state.decode(data, trusted=trusted, max_memory=state.UNLIMITED)
    if not isinstance(parts, dict) or "format" not in parts:
        raise CorruptFileError("these bytes are no monitor")
    if parts["format"] != FORMAT:
        raise NewerFormatError(
            f"the monitor has the format {parts['format']}, this version reads {FORMAT}"
        )
    if parts.keys() != _PARTS:
        raise CorruptFileError(f"a monitor has the parts {', '.join(sorted(_PARTS))}")
    training: Rows | None = parts["rows"]["training"]
    if training is not None:
        check_same_ids(model, training, were_named=True)
    monitor = Monitor.__new__(Monitor)
    restore(monitor, None, model, parts["rows"], parts["record"], parts["metric"])
    return monitor


def forget_with_monitor(monitor: Monitor, ids: Any) -> tuple[Receipt | None, Reading]:
    """Forget these people and look at the model; return what was done and what was seen.

    The receipt is the model's own, None if these people had test rows only.

    An erasure does not wait for a metric: if it raises, the people are forgotten all the same, and
    the reading says that a retrain is due.
    """
    n_readings = len(monitor.history)
    try:
        monitor.forget(ids)
    except Exception:
        # Without a new reading nobody was forgotten.
        if len(monitor.history) == n_readings:
            raise
    return monitor.receipt, monitor.history[-1]


def adopt_retrained(
    monitor: Monitor, model: Any, rows: Rows, *, seconds: float | None = None
) -> Reading | None:
    """Go on with a model that was trained afresh on these rows.

    Whoever is among the monitor's people and not in the rows leaves it with this retrain.
    """
    held = as_ids(monitor.model.ids_) if monitor._rows is None else monitor._rows.ids
    people = held.distinct()
    gone = people.take(np.flatnonzero(~rows.index.find(people).has_rows))
    return monitor.adopt(model, gone.to_array(), seconds=seconds)


def compute_policy_digest(monitor: Monitor) -> str:
    """Return the SHA-256 of what the monitor tolerates and how it is calibrated.

    ``SHA-256("letheon/monitor-policy/v1" | 0 | JSON of tolerances, calibration and metric)``, with
    sorted keys and no blanks. Nothing in it depends on rows, requests or seeds.
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
    """Return a number of NumPy's as one of Python's."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r} in the calibration's requests cannot be part of a policy")


def unpack_watch(packed: bytes, trusted: Iterable[str]) -> Watch:
    """Return what a packed monitor tolerates."""
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
