"""A monitor as plain values, and back."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from letheon.data import Rows
from letheon.monitor._calibrate import Calibration
from letheon.monitor._judge import Judge, judge_for
from letheon.monitor._limits import Limit
from letheon.monitor._panel import Panel
from letheon.monitor._reading import History, Reading, Tolerances
from letheon.monitor._store import Folder
from letheon.monitor._stretch import Stretch

__all__ = ["read_calibration", "record_of", "restore"]


def record_of(monitor: Any) -> dict[str, Any]:
    """Return everything but model and rows, as plain values."""
    return {
        "tolerances": asdict(monitor.tolerances),
        "on_breach": monitor.on_breach,
        "calibration": None if monitor.calibration is None else monitor.calibration.to_dict(),
        "hold_forgotten_until_retrain": monitor.hold_forgotten_until_retrain,
        "knows_people": monitor._panel.knows_people,
        "metric": None if monitor._judge.metric is None else monitor._judge.name,
        "uses_probability": monitor._judge.uses_probability,
        "seed": str(monitor._seed),
        "n_retrains": monitor.n_retrains,
        "stretch": asdict(monitor._stretch),
        "limits": {name: limit.to_dict() for name, limit in monitor.limits.items()},
        "history": monitor.history.to_list(),
    }


def restore(
    monitor: Any,
    place: Folder | None,
    model: Any,
    rows: dict[str, Rows | None],
    record: dict[str, Any],
    metric: Callable[[Any, Any], Any] | None,
) -> None:
    """Fill an empty monitor with what was saved, without another rehearsal."""
    judge = _same_judge(model, record, metric)
    test = rows["test"]
    assert test is not None
    vars(monitor).update(
        model=model,
        tolerances=Tolerances(**record["tolerances"]),
        on_breach=record["on_breach"],
        calibration=read_calibration(record["calibration"]),
        hold_forgotten_until_retrain=record["hold_forgotten_until_retrain"],
        history=History([Reading.from_dict(values) for values in record["history"]]),
        limits={name: Limit.from_dict(values) for name, values in record["limits"].items()},
        n_retrains=record["n_retrains"],
        _folder=place,
        _seed=int(record["seed"]),
        _judge=judge,
        _rows=rows["training"],
        _panel=Panel(test, judge, record["knows_people"]),
        _gone=rows["forgotten"],
        _stretch=Stretch.from_dict(record["stretch"]),
    )


def read_calibration(saved: dict[str, Any] | None) -> Calibration | None:
    """Return the saved calibration; earlier versions asked for no assumption."""
    if saved is None:
        return None
    settings: dict[str, Any] = {**saved, "kinds": tuple(saved["kinds"])}
    try:
        return Calibration(**settings)
    except ValueError:
        if saved.get("assume"):
            raise
        only = ", ".join(settings["kinds"])
        assume = f"only requests of these kinds come: {only} (saved before a reason was asked for)"
        return Calibration(**settings, assume=assume)


def _same_judge(model: Any, record: Mapping[str, Any], metric: Any) -> Judge:
    """Return how the saved monitor judged; raise if its metric was not given again."""
    judge = judge_for(model, metric)
    saved = record["metric"]
    name = None if judge.metric is None else judge.name
    if saved != name:
        raise ValueError(f"this monitor was saved with metric={saved}, and metric={name} was given")
    return judge
