"""The report of a run: Markdown, JSON, and one HTML page."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from letheon.bench._figures import draw_pictures
from letheon.bench._grid import Options
from letheon.bench._machine import describe_machine
from letheon.bench._published import PUBLISHED
from letheon.bench._recipes import DELTA, EPSILON, RECIPES
from letheon.bench._table import lines_of
from letheon.bench._tables import brief_table, main_table, report_tables
from letheon.evaluation.report import Report, write_page

__all__ = ["write_results"]

Record = dict[str, Any]
_TITLE = "Benchmark of all methods: measured beside published"
_ENDS = ("value", "low", "high")
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
    picture: bool = False,
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
    picture : bool, default=False
        Also write the first of them as ``file.png``.

    Returns
    -------
    list of Path
        The files.
    """
    base = Path(file)
    report = Report(
        _TITLE,
        settings=_settings(records, options, seconds),
        machine=_machine(records),
        table=main_table(records),
        tables=[brief_table(records), *report_tables(records, options)],
        summary=_summary(records, options),
        notes=_notes(records),
        pictures=draw_pictures(records) if figures else (),
    )
    content = {
        "title": _TITLE,
        "machine": report.machine,
        "settings": report.settings,
        "options": options.to_dict(),
        "lines": [asdict(line) for line in lines_of(records)],
        "published": [asdict(line) for line in PUBLISHED],
    }
    written = [
        write_page(base.with_suffix(".md"), report.to_markdown()),
        write_page(base.with_suffix(".json"), _json(content, records)),
        write_page(base.with_suffix(".html"), report.to_html()),
    ]
    if picture and report.pictures:
        written.append(base.with_suffix(".png"))
        report.pictures[0].figure.savefig(written[-1], dpi=110)
    return written


def _summary(records: Sequence[Record], options: Options) -> list[str]:
    """Return what a reader has to know before the first table."""
    failed = sum(record["error"] is not None for record in records)
    said = f"{len(records):,} cells, {failed:,} of them failed." if failed else ""
    size = (
        "Small models on few rows: a look at the tool, no results."
        if options.small
        else (
            f"At most {options.rows:,} training rows, {options.net_rows:,} for nets; larger tables "
            "favour removal over retraining."
        )
    )
    published = (
        "Published numbers are of other data, machines and experiments. They stand beside ours for "
        "orientation, and the survey itself warns against comparing them."
    )
    n_attacked = sum(bool(record["attacks"]) for record in records)
    tested = (
        f"Forgetting was tested in {n_attacked:,} cells, by attacks; the other measures do not."
        if n_attacked
        else "Forgetting was not tested: no attack ran."
    )
    return [said or f"{len(records):,} cells, none failed.", tested, size, published]


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
            "of ones, each row divided by its norm; images: pixels (CIFAR: means of 4 x 4), each "
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


def _json(content: dict[str, Any], records: Sequence[Record]) -> str:
    """Return everything as JSON, one line for each cell."""
    cells = ",\n".join(json.dumps(_compact(record)) for record in records)
    head = json.dumps(content, indent=1).removesuffix("\n}")
    return f'{head},\n "cells": [\n{cells}\n]\n}}\n'


def _compact(record: Record) -> Record:
    """Return a cell without its trials: settings, and of every measure value, low and high."""
    found = {
        name: record.get(name)
        for name in ("cell", "data", "setting", "device", "error", "warnings", "seconds")
    }
    found["attacks"] = [
        {
            **{name: attack.get(name) for name in ("attack", "about", "n_models")},
            **{name: _numbers(attack[name]) for name in ("measures", "floor")},
        }
        for attack in record["attacks"]
    ]
    whole = record["evaluation"]
    if whole is not None:
        found |= {name: _numbers(whole[name]) for name in ("floor", "seconds", "scores")}
        found["measures"] = {name: _numbers(each) for name, each in whole["measures"].items()}
        kept = ("storage", "guarantee", "baselines", "equal_digests", "strength", "work")
        found |= {name: whole[name] for name in kept if name in whole}
    return found


def _numbers(measures: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [each[end] for end in _ENDS] for name, each in measures.items()}
