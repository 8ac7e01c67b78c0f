"""The report of a run: Markdown, JSON, and one HTML page."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from letheon.bench._grid import Options
from letheon.bench._html import write_report
from letheon.bench._machine import describe_machine
from letheon.bench._markdown import Table
from letheon.bench._published import PUBLISHED, Spread
from letheon.bench._recipes import DELTA, EPSILON, RECIPES
from letheon.bench._table import BASELINES, Line, lines_of
from letheon.bench._tables import main_table, report_tables

__all__ = ["write_results"]

Record = dict[str, Any]
_TITLE = "Benchmark of all methods: measured beside published"
_ORDINARY = {
    "linear": "logistic regression of scikit-learn, C = 1",
    "forest": "random forest of scikit-learn, as many trees, no limit of depth",
    "net": "the same net trained in one go (Adam, one cycle)",
}


def write_results(
    records: Sequence[Record],
    options: Options,
    file: str | Path,
    *,
    seconds: float | None = None,
    figures: bool = True,
) -> list[Path]:
    """Write ``file.md``, ``file.json`` and ``file.html``, which opens without a network.

    Parameters
    ----------
    records : sequence of dict
        Cells, as `run` or `read_cells` returns them.
    options : Options
        What was run.
    file : path
        Without a suffix.
    seconds : float, optional
        How long the run took.
    figures : bool, default=True
        Whether the page has pictures; they need matplotlib.

    Returns
    -------
    list of Path
        The three files.
    """
    base = Path(file)
    base.parent.mkdir(parents=True, exist_ok=True)
    main, others = main_table(records), report_tables(records, options)
    settings, machine = _settings(records, options, seconds), _machine(records)
    content = {
        "title": _TITLE,
        "machine": machine,
        "settings": settings,
        "options": options.to_dict(),
        "lines": [asdict(line) for line in lines_of(records)],
        "published": [asdict(line) for line in PUBLISHED],
        "cells": [_compact(record) for record in records],
    }
    written = [base.with_suffix(suffix) for suffix in (".md", ".json", ".html")]
    written[0].write_text("\n".join(_markdown(main, others, settings, machine)) + "\n", "utf-8")
    written[1].write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    write_report(
        written[2],
        {
            "title": _TITLE,
            "summary": _summary(records),
            "table": main,
            "figures": _figures(records) if figures else [],
            "tables": others,
            "notes": _notes(records),
            "settings": settings,
            "machine": machine,
        },
    )
    return written


def _markdown(
    main: Table, others: Sequence[Table], settings: dict[str, Any], machine: dict[str, Any]
) -> list[str]:
    lines = [f"# {_TITLE}", ""]
    lines += [f"- {name}: {value}" for name, value in (machine | settings).items()]
    for table in (main, *others):
        lines += ["", *table.lines()]
    return lines


def _summary(records: Sequence[Record]) -> list[str]:
    failed = sum(record["error"] is not None for record in records)
    said = f"{len(records):,} cells, {failed:,} of them failed." if failed else ""
    return [said or f"{len(records):,} cells, none failed."]


def _settings(records: Sequence[Record], options: Options, seconds: float | None) -> dict[str, Any]:
    failed = sum(record["error"] is not None for record in records)
    made_up = {r["cell"]["dataset"] for r in records if not r.get("real", True)}
    found = {
        "people removed": ", ".join(options.removed),
        "seeds": options.seeds,
        "rows at most": (
            f"{options.rows:,} (linear, forest), {options.net_rows:,} (net), "
            f"{options.attack_rows:,} under attack, {options.test_rows:,} to test"
        ),
        "rows for linear models": (
            "columns centred and scaled by constants of rows set aside, clipped at 3, a column "
            "of ones, each row divided by its norm; images: pixels (CIFAR: means of 2 x 2), each "
            "row divided by its norm"
        ),
        "ordinary models": "; ".join(f"{name}: {text}" for name, text in _ORDINARY.items()),
        "certificates": f"epsilon = {EPSILON:g}, delta = {DELTA:g}",
        "threads": "one",
        "cells": f"{len(records):,}, failed: {failed:,}",
        "seconds of all cells": round(sum(record["seconds"] for record in records)),
    }
    if seconds is not None:
        found["seconds on the clock"] = round(seconds)
    if made_up:
        found["SYNTHETIC stand-ins"] = ", ".join(sorted(made_up))
    return found


def _machine(records: Sequence[Record]) -> dict[str, Any]:
    """Return the machine of the cells; others, if nets were run elsewhere, are named too."""
    machines = [record["machine"] for record in records] or [describe_machine()]
    first = machines[0]
    others = {
        f"{each['processor']}{', ' + each['gpu'] if 'gpu' in each else ''}"
        for each in machines
        if (each["processor"], each.get("gpu")) != (first["processor"], first.get("gpu"))
    }
    return {**first, **({"some cells ran on": "; ".join(sorted(others))} if others else {})}


def _notes(records: Sequence[Record]) -> list[str]:
    notes = [f"{r.method} ({r.family}), {r.setting}: {r.note}." for r in RECIPES if r.note]
    heard = {text for record in records for text in record["warnings"]}
    return [*notes, *(f"Warning in some cells: {text}" for text in sorted(heard)[:20])]


def _compact(record: Record) -> Record:
    """Return a cell without its trials, which would make the file large."""
    found = {name: value for name, value in record.items() if name not in ("machine", "format")}
    if found["evaluation"] is not None:
        kept = {name: value for name, value in found["evaluation"].items() if name != "trials"}
        found["evaluation"] = kept
    return found


def _figures(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the pictures; without matplotlib there are none."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    from letheon.plot import ParetoDisplay

    found = []
    for baseline in BASELINES:
        lines = [line for line in lines_of(records) if line.baseline == baseline]
        if not lines:
            continue
        figure = Figure(figsize=(9.5, 6.2), layout="constrained")
        ParetoDisplay({_name(line): _measures(line) for line in lines}).plot(figure.subplots())
        note = "Means over data sets, the least number of people; bars reach from least to largest."
        title = f"Efficiency and effectiveness against the {baseline}"
        found.append({"figure": figure, "title": title, "alt": title, "note": note})
    return found


def _name(line: Line) -> str:
    return f"{line.method} ({line.family}), {line.setting}"


def _measures(line: Line) -> dict[str, Any]:
    points = Spread(*(value / 100 for value in line.effectiveness))
    return {
        "efficiency": _ranged("efficiency", line.efficiency, len(line.datasets), "higher", "x"),
        "effectiveness": _ranged("effectiveness", points, len(line.datasets), "lower", ""),
    }


def _ranged(name: str, spread: Spread, n: int, better: Any, unit: str) -> Any:
    """Return a mean whose ends are those of the range over data sets, no interval."""
    from letheon.measures import Measure

    return Measure(
        name=name,
        value=spread.mean,
        low=spread.low,
        high=spread.high,
        n=n,
        better=better,
        basis="measured",
        unit=unit,
        note="ends: least and largest over data sets",
    )
