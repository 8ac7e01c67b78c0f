"""The report of a run: Markdown, JSON, and one HTML page with figures."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from letheon.bench import _tables
from letheon.bench._grid import DELTA, EPSILON, VARIANTS, BenchmarkOptions
from letheon.bench._run import describe_machine
from letheon.bench._tables import ResultLine, Spread, attack_value
from letheon.evaluation.report import Picture, Report, write_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = dict[str, Any]
_TITLE = "Benchmark of all methods: measured and published numbers"
_ENDS = ("value", "low", "high")
_ORDINARY = {
    "linear": "scikit-learn logistic regression, C = 1",
    "forest": "scikit-learn random forest, as many trees, unlimited depth",
    "net": "the same network trained in one run (Adam, one cycle)",
}
# Okabe and Ito's colours, and the vertical offset of a range in its line.
_RANGES = {
    "same algorithm": ("#0072B2", -0.22),
    "ordinary model": ("#D55E00", 0.06),
    "published": ("#767676", 0.32),
}
_ATTACKS = {
    "RMIA": ("rmia", "#0072B2"),
    "before and after": ("before-after", "#D55E00"),
    "backdoor": ("backdoor", "#009E73"),
}
_LEAST_POINTS = 0.01


def write_results(
    records: Sequence[Record],
    options: BenchmarkOptions,
    file: str | Path,
    *,
    seconds: float | None = None,
    figures: bool = True,
    picture: bool = False,
) -> list[Path]:
    """Write ``file.md``, ``file.json`` and ``file.html``, a page without external resources.

    Parameters
    ----------
    records : sequence of dict
        Cells, as `run` or `read_cells` returns them.
    options : BenchmarkOptions
        Options of the run.
    file : path
        Path without a suffix.
    seconds : float, optional
        Duration of the run.
    figures : bool, default=True
        Whether the page has figures, which need matplotlib.
    picture : bool, default=False
        Whether to write the first figure as ``file.png``.

    Returns
    -------
    list of Path
        The written files.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from letheon.bench import BenchmarkOptions, run
    >>> sizes = {"datasets": ("breast-cancer",), "removed": ("1",), "seeds": 1, "rows": 100}
    >>> options = BenchmarkOptions.quick(methods=("NearestCentroid",), attacks=False, **sizes)
    >>> with TemporaryDirectory() as folder:
    ...     records = run(options, folder)
    ...     files = write_results(records, options, f"{folder}/results", figures=False)
    >>> [file.name for file in files]
    ['results.md', 'results.json', 'results.html']
    """
    base = Path(file)
    notes = [f"{r.method} ({r.family}), {r.setting}: {r.note}." for r in VARIANTS if r.note]
    messages = {text for record in records for text in record["warnings"]}
    report = Report(
        _TITLE,
        settings=_make_settings(records, options, seconds),
        machine=_describe_machines(records),
        table=_tables.main_table(records),
        tables=[_tables.brief_table(records), *_tables.report_tables(records, options)],
        summary=_make_summary(records, options),
        notes=[*notes, *(f"Warning in some cells: {text}" for text in sorted(messages)[:20])],
        pictures=draw_pictures(records) if figures else (),
    )
    content = {
        "title": _TITLE,
        "machine": report.machine,
        "settings": report.settings,
        "options": options.to_dict(),
        "lines": [asdict(line) for line in _tables.make_lines(records)],
        "published": [asdict(line) for line in _tables.PUBLISHED],
    }
    # One line for each cell.
    head = json.dumps(content, indent=1).removesuffix("\n}")
    cells = ",\n".join(json.dumps(_compact_record(record)) for record in records)
    written = [
        write_page(base.with_suffix(".md"), report.to_markdown()),
        write_page(base.with_suffix(".json"), f'{head},\n "cells": [\n{cells}\n]\n}}\n'),
        write_page(base.with_suffix(".html"), report.to_html()),
    ]
    if picture and report.pictures:
        written.append(base.with_suffix(".png"))
        report.pictures[0].figure.savefig(written[-1], dpi=110)
    return written


def _make_summary(records: Sequence[Record], options: BenchmarkOptions) -> list[str]:
    """Return the sentences of the report that come before the first table."""
    n_failed = sum(record["error"] is not None for record in records)
    n_attacked = sum(bool(record["attacks"]) for record in records)
    size = (
        f"At most {options.rows:,} training rows, {options.net_rows:,} for networks; larger tables "
        "favour removal over retraining."
    )
    published = (
        "Published numbers come from other data, machines and experiments. They are shown for "
        "orientation; the survey itself warns against comparing them."
    )
    tested = (
        f"Attacks tested forgetting in {n_attacked:,} cells; the other measures do not test it."
    )
    return [
        f"{len(records):,} cells, {f'{n_failed:,} of them' if n_failed else 'none'} failed.",
        tested if n_attacked else "Forgetting was not tested: no attack ran.",
        "Small models on few rows: a trial run, not a result." if options.small else size,
        published,
    ]


def _make_settings(
    records: Sequence[Record], options: BenchmarkOptions, seconds: float | None
) -> dict[str, Any]:
    n_failed = sum(record["error"] is not None for record in records)
    made_up = {r["cell"]["dataset"] for r in records if not r.get("real", True)}
    settings = {
        "people removed": ", ".join(options.removed),
        "seeds": options.seeds,
        "rows at most": (
            f"{options.rows:,} (linear, forest), {options.net_rows:,} (net), "
            f"{options.attack_rows:,} under attack, {options.test_rows:,} to test"
        ),
        "rows for linear models": (
            "columns centred and scaled with constants from separate rows, clipped at 3, a column "
            "of ones, each row divided by its norm; images: pixels (CIFAR: means of 4 x 4), each "
            "row divided by its norm"
        ),
        "ordinary models": "; ".join(f"{name}: {text}" for name, text in _ORDINARY.items()),
        "certificates": f"epsilon = {EPSILON:g}, delta = {DELTA:g}",
        "threads": "one",
        "cells": f"{len(records):,}, failed: {n_failed:,}",
        "seconds of all cells": round(sum(record["seconds"] for record in records)),
    }
    if seconds is not None:
        settings["duration in seconds"] = round(seconds)
    if made_up:
        settings["SYNTHETIC stand-ins"] = ", ".join(sorted(made_up))
    return settings


def _describe_machines(records: Sequence[Record]) -> dict[str, Any]:
    """Return facts about the machine of the first cell, and the names of any other machines."""
    machines = [record["machine"] for record in records] or [describe_machine()]
    first = machines[0]
    others = {
        f"{each['processor']}{', ' + each['gpu'] if 'gpu' in each else ''}"
        for each in machines
        if (each["processor"], each.get("gpu")) != (first["processor"], first.get("gpu"))
    }
    return {**first, **({"some cells ran on": "; ".join(sorted(others))} if others else {})}


def _compact_record(record: Record) -> Record:
    """Return a cell without its trials: settings, and value, low and high of every measure."""
    compact = {
        name: record.get(name)
        for name in ("cell", "data", "setting", "device", "error", "warnings", "seconds")
    }
    compact["attacks"] = [
        {
            **{name: attack.get(name) for name in ("attack", "about", "n_models")},
            **{name: _extract_numbers(attack[name]) for name in ("measures", "floor")},
        }
        for attack in record["attacks"]
    ]
    whole = record["evaluation"]
    if whole is not None:
        compact |= {name: _extract_numbers(whole[name]) for name in ("floor", "seconds", "scores")}
        compact["measures"] = {
            name: _extract_numbers(each) for name, each in whole["measures"].items()
        }
        kept = ("storage", "guarantee", "baselines", "equal_digests", "strength", "work")
        compact |= {name: whole[name] for name in kept if name in whole}
    return compact


def _extract_numbers(measures: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [each[end] for end in _ENDS] for name, each in measures.items()}


def draw_pictures(records: Sequence[Record]) -> list[Picture]:
    """Return the figures of a report; an empty list if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    lines = _tables.make_lines(records)
    if not lines:
        return []
    pictures = [_draw_measures(lines, Figure)]
    if any(record["attacks"] for record in records):
        pictures.append(_draw_attacks(records, lines, Figure))
    return pictures


def _draw_measures(lines: Sequence[ResultLine], figure_type: Any) -> Picture:
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(map(_name_line, lines)))
    figure = figure_type(figsize=(11, 1.4 + 0.36 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for line in lines:
        place, known = names.index(_name_line(line)), line.published
        points = Spread(*(max(value, _LEAST_POINTS) for value in line.effectiveness))
        _draw_range(left, place, line.baseline, line.efficiency)
        _draw_range(right, place, line.baseline, points)
        is_here = known is not None and known.efficiency_against == line.baseline
        if known is not None and is_here and isinstance(known.efficiency, Spread):
            _draw_range(left, place, "published", known.efficiency)
    left.axvline(1, color="black", linewidth=0.8)
    left.set(xscale="log", xlabel="efficiency: times faster than a retrain")
    right.set(xscale="log", xlabel="effectiveness: points of accuracy off")
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.4, -0.6)
    for ax in (left, right):
        ax.grid(axis="x", alpha=0.3)
        for place in range(1, len(names), 2):
            ax.axhspan(place - 0.5, place + 0.5, color="#f2f2f2", zorder=0)
    words = ("compared with the same algorithm", "compared with an ordinary model", "published")
    handles = [
        Line2D([], [], color=colour, marker="o", label=word)
        for (colour, _), word in zip(_RANGES.values(), words, strict=True)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return Picture(
        figure,
        title="Efficiency and effectiveness, measured and published",
        alt="Ranges over data sets for each method and setting; the main table has the numbers",
        note=(
            "Minimum, geometric mean (effectiveness: mean) and maximum over data sets, for the "
            f"smallest number of people. Values below {_LEAST_POINTS} points are drawn at "
            "this value."
        ),
    )


def _name_line(line: ResultLine) -> str:
    return f"{line.name}, {line.setting}"


def _draw_range(ax: "Axes", place: int, series: str, spread: Spread) -> None:
    colour, shift = _RANGES[series]
    ax.plot([spread.low, spread.high], [place + shift] * 2, color=colour, linewidth=1.4)
    ax.plot([spread.mean], [place + shift], marker="o", markersize=4, color=colour)


def _draw_attacks(
    records: Sequence[Record], lines: Sequence[ResultLine], figure_type: Any
) -> Picture:
    keys = {_name_line(line): line.key for line in lines}
    names = [name for name, key in keys.items() if attack_value(records, key, "rmia", "AUC")]
    figure = figure_type(figsize=(9, 1.4 + 0.32 * len(names)), layout="constrained")
    ax = figure.subplots()
    for number, (label, (attack, colour)) in enumerate(_ATTACKS.items()):
        for place, name in enumerate(names):
            pair = attack_value(records, keys[name], attack, "AUC")
            if pair is None:
                continue
            height, shown = place + 0.25 * (number - 1), label if place == 0 else None
            ax.plot(pair[::-1], [height, height], color=colour, linewidth=1.0)
            ax.plot([pair[0]], [height], "o", color=colour, markersize=5, label=shown)
            ax.plot([pair[1]], [height], "o", color=colour, markersize=5, fillstyle="none")
    ax.axvline(0.5, color="black", linewidth=0.8)
    ax.set_yticks(range(len(names)), names)
    ax.set(xlabel="AUC; 0.5 finds nothing", xlim=(0.3, 1.02), ylim=(len(names) - 0.4, -0.6))
    ax.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=len(_ATTACKS), frameon=False)
    return Picture(
        figure,
        title="Attacks on forgotten people",
        alt="AUC of three attacks on each method, with their floors",
        note=(
            "Filled: the unlearned model; hollow: the floor (before and after: people who were "
            "never in the data). Means over data sets."
        ),
    )
