"""Plots of the forest benchmarks."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks._forest_curves import Dial
from benchmarks._forest_fresh import Fresh
from benchmarks._forest_sets import EAGER, FIT, LAZY, REACH, SETTLED, SUBSAMPLED, Reach, SetFindings
from letheon.plot._axes import COLOURS, MARKERS, plain_ticks

__all__ = ["Growth", "draw_curves", "draw_growth", "draw_sets"]

SHOWN: dict[str, Callable[[Reach], float]] = {
    FIT: lambda reach: 1 / reach.fit,
    EAGER: lambda reach: reach.eager,
    SETTLED: lambda reach: reach.settled,
    LAZY: lambda reach: reach.lazy,
    SUBSAMPLED: lambda reach: reach.subsampled,
}
DPI = 130


class Growth(NamedTuple):
    """Three series of forests, by rows, trees and depth."""

    rows: list[Fresh]
    trees: list[Fresh]
    depth: list[Fresh]


def draw_sets(results: list[SetFindings], file: Path) -> None:
    """Draw mean and p99 of every kind of removal, in units of F, one panel per table."""
    n_columns = min(3, len(results))
    n_lines = -(-len(results) // n_columns)
    figure = Figure(figsize=(4.2 * n_columns + 1.6, 3.2 * n_lines + 0.8), layout="constrained")
    grid: Any = figure.subplots(n_lines, n_columns, squeeze=False, sharex=True, sharey=True)
    panels = list(grid.flat)
    for findings, ax in zip(results, panels, strict=False):
        _draw_set(findings, ax)
    for ax in panels[len(results) :]:
        ax.set_visible(False)
    panels[0].set_yticks(range(len(SHOWN)), list(SHOWN))
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle("Time beside one fit of scikit-learn's RandomForest (F), logarithmic")
    figure.savefig(file, dpi=DPI)


def _draw_set(findings: SetFindings, ax: Axes) -> None:
    for place, (what, reach_of) in enumerate(SHOWN.items()):
        timing, first = findings.timings[what], place == 0
        mean, tail = timing.mean / findings.unit, timing.quantile(0.99) / findings.unit
        if len(timing.values) > 10:
            ax.plot([mean, tail], [place, place], color=COLOURS[0], linewidth=1.5, zorder=2)
        label = "mean, line to p99" if first else None
        ax.plot(mean, place, "o", color=COLOURS[0], markersize=8, zorder=3, label=label)
        if findings.split.name in REACH:
            limit = 1 / reach_of(REACH[findings.split.name])
            label = "to reach" if first else None
            ax.plot(
                limit, place, "|", color=COLOURS[1], markersize=20, markeredgewidth=2.5, label=label
            )
    ax.axvline(1, color="0.5", linestyle="--", linewidth=1)
    ax.set(xscale="log", title=f"{findings.split.name}, F = {findings.unit:.2f} s")
    ax.xaxis.set_major_formatter(FuncFormatter(_part_of_unit))
    ax.tick_params(axis="x", labelrotation=30, labelbottom=True)
    ax.margins(y=0.12)
    ax.grid(alpha=0.3)


def _part_of_unit(value: float, _: float) -> str:
    return f"{value:g} F" if value >= 1 else f"F/{_format_count(1 / value)}"


def _format_count(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= 0.99 * size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def draw_growth(growth: Growth, file: Path) -> None:
    """Draw times (upper row) and memory (lower row) against rows, trees and depth."""
    figure = Figure(figsize=(13.5, 7.2), layout="constrained")
    panels: Any = figure.subplots(2, 3, sharex="col")
    series: tuple[tuple[str, list[Fresh], list[int]], ...] = (
        ("rows", growth.rows, [point.n_rows for point in growth.rows]),
        ("trees", growth.trees, [point.n_estimators for point in growth.trees]),
        ("depth", growth.depth, [point.max_depth for point in growth.depth]),
    )
    for (name, points, places), column in zip(series, panels.T, strict=True):
        upper, lower = column
        _draw_times(points, places, upper)
        megabytes = [max(point.memory / 1e6, 0.1) for point in points]  # smaller values are noise
        lower.plot(places, megabytes, marker="o", color=COLOURS[0])
        lower.set(xlabel=name, yscale="log")
        upper.set_title(f"growth with {name}, {_describe_fixed(name, points[0])}", fontsize=11)
        if name == "depth":
            lower.set_xticks(places)
        else:
            lower.set_xscale("log")
            lower.set_xticks(places, [_format_count(place) for place in places])
            lower.xaxis.minorticks_off()
        for ax in (upper, lower):
            ax.grid(alpha=0.3)
            _plain_numbers(ax)
    panels[0, 0].set_ylabel("milliseconds")
    panels[1, 0].set_ylabel("memory over the data, MB")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    figure.savefig(file, dpi=DPI)


def _draw_times(points: Sequence[Fresh], places: list[int], ax: Axes) -> None:
    lines: dict[str, list[float]] = {
        "fit": [point.fit for point in points],
        "forget, eager": [float(np.mean(point.eager)) for point in points],
        "forget + settle": [point.settled for point in points],
        "forget, lazy": [float(np.mean(point.lazy)) for point in points],
    }
    for number, (name, values) in enumerate(lines.items()):
        ax.plot(
            places,
            [1000 * value for value in values],
            color=COLOURS[number],
            marker=MARKERS[number],
            label=name,
        )
    ax.set_yscale("log")


def _describe_fixed(name: str, point: Fresh) -> str:
    parts = {
        "rows": f"{_format_count(point.n_rows)} rows",
        "trees": f"{point.n_estimators} trees",
        "depth": f"depth {point.max_depth}",
    }
    return ", ".join(text for part, text in parts.items() if part != name)


def draw_curves(dials: list[Dial], dial_name: str, file: Path, *, logarithmic: bool) -> None:
    """Draw AUC (upper row) and speed-up (lower row) against a parameter, by table."""
    names = list(dict.fromkeys(dial.data for dial in dials))
    figure = Figure(figsize=(4.4 * len(names), 6.2), layout="constrained")
    panels: Any = figure.subplots(2, len(names), squeeze=False, sharex="col")
    for name, column in zip(names, panels.T, strict=True):
        mine = {dial.value: dial for dial in dials if dial.data == name}
        _draw_dial(list(mine.values()), *column)
        column[0].set_title(name)
        column[1].set_xlabel(dial_name)
        if logarithmic:
            plain_ticks(column[1], list(mine))
        else:
            column[1].set_xticks(list(mine))
    panels[0, 0].set_ylabel("AUC on held-out rows")
    panels[1, 0].set_ylabel("retrain / (forget + settle)")
    panels[1, 0].legend(frameon=False)
    figure.savefig(file, dpi=DPI)


def _draw_dial(dials: list[Dial], upper: Axes, lower: Axes) -> None:
    places = [dial.value for dial in dials]
    upper.plot(places, [dial.quality.auc for dial in dials], color=COLOURS[2], marker=MARKERS[2])
    lines = {
        "random people": [dial.speed_up for dial in dials],
        "worst of many": [dial.fit / dial.worst for dial in dials],
    }
    for number, (what, speeds) in enumerate(lines.items()):
        lower.plot(places, speeds, color=COLOURS[number], marker=MARKERS[number], label=what)
    lower.set_yscale("log")
    for ax in (upper, lower):
        ax.margins(x=0.1, y=0.15)
        ax.grid(alpha=0.3)
    _plain_numbers(lower)


def _plain_numbers(ax: Axes) -> None:
    """Label a logarithmic y axis without powers."""
    ax.yaxis.set_major_formatter(FuncFormatter(_plain_number))
    low, high = ax.get_ylim()
    # Minor ticks need labels only if there are few major ticks.
    ax.yaxis.set_minor_formatter(
        NullFormatter() if high > 10 * low else FuncFormatter(_plain_number)
    )


def _plain_number(value: float, _: float) -> str:
    return f"{value:g}" if value < 10_000 else _format_count(value)
