"""Cells without a run: what `run_cell` returns, with planted numbers."""

from dataclasses import replace
from typing import Any

from letheon.bench import BenchmarkCell, BenchmarkOptions

__all__ = ["attack", "failed", "measured", "quick_runner"]


def _measure(name: str, value: float, low: float | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "low": low,
        "high": None if low is None else value + (value - low),
        "n": 3,
        "better": "lower",
        "basis": "measured",
        "confidence": 0.95,
        "unit": "",
        "note": "",
    }


def _against(efficiency: float, effectiveness: float, agreement: float, sape: float) -> Any:
    return {
        "efficiency": _measure("efficiency", efficiency, efficiency / 2),
        "effectiveness": _measure("effectiveness", effectiveness),
        "output consistency": _measure("output consistency", agreement),
        "certifiability": _measure("certifiability", sape),
    }


def _record(cell: BenchmarkCell, options: BenchmarkOptions) -> dict[str, Any]:
    return {
        "format": 1,
        "cell": options.fingerprint(cell),
        "device": "cpu",
        "evaluation": None,
        "attacks": [],
        "error": None,
        "warnings": [],
        "seconds": 0.5,
        "machine": {"processor": "made up", "cores": 2},
        "data": f"{cell.dataset}: 10 rows",
        "real": True,
        "setting": cell.setting,
    }


def measured(
    cell: BenchmarkCell,
    options: BenchmarkOptions | None = None,
    *,
    efficiency: float = 10.0,
    effectiveness: float = 0.01,
    agreement: float = 99.0,
    sape: float = 1.0,
    kind: str = "empirical",
) -> dict[str, Any]:
    """Return a cell that went well; against the ordinary model everything is twice as large."""
    record = _record(cell, options or BenchmarkOptions())
    seconds = {"fit": 2.0, "forget": 0.25, "same algorithm": 1.0, "ordinary model": 0.5}
    certified = {"epsilon": 1.0, "delta": 1e-4} if kind == "certified" else {}
    record["evaluation"] = {
        "measures": {
            "same algorithm": _against(efficiency, effectiveness, agreement, sape),
            "ordinary model": _against(2 * efficiency, 2 * effectiveness, agreement / 2, 2 * sape),
        },
        "floor": {"output consistency": _measure("output consistency", 99.5)},
        "seconds": {name: _measure(name, value) for name, value in seconds.items()},
        "scores": {
            "unlearned": _measure("unlearned", 0.9),
            "ordinary model": _measure("ordinary model", 0.92),
        },
        "storage": {"unlearned": 600, "same algorithm": 200, "ordinary model": 100},
        "guarantee": {"kind": kind, **certified},
        "trials": [{"seed": 0}],
    }
    return record


def attack(cell: BenchmarkCell, name: str, value: float, floor: float) -> dict[str, Any]:
    """Return a cell of one attack with one measure."""
    record = _record(replace(cell, kind="attack"), BenchmarkOptions())
    measures = {"AUC": _measure("AUC", value)}
    floors = {"AUC": _measure("AUC", floor)}
    entry = {"attack": name, "about": "forgotten", "measures": measures, "floor": floors}
    record["attacks"] = [entry]
    return record


def failed(cell: BenchmarkCell, options: BenchmarkOptions | None = None) -> dict[str, Any]:
    """Return a cell that ended with an error."""
    record = _record(cell, options or BenchmarkOptions())
    record["error"] = {"kind": "ValueError", "text": "a planted failure", "where": "here, line 1"}
    return record


def quick_runner(cell: BenchmarkCell, options: BenchmarkOptions) -> dict[str, Any]:
    """Stand in for `run_cell`."""
    return measured(cell, options)
