"""Plots of the results of the convex methods."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks._convex_batch import Sequence as Removals
from benchmarks._convex_curves import Point
from benchmarks._convex_single import Single
from letheon.plot._axes import COLOURS, MARKERS

__all__ = ["draw_curves", "draw_sequences", "draw_speeds", "draw_trade_offs"]

DPI = 130
Measure = Callable[[Point], float | None]
SAPES: dict[str, Measure] = {
    "effectiveness:\nSAPE on test rows, %": lambda point: point.test,
    "certifiability:\nSAPE on deleted rows, %": lambda point: point.deleted,
}
RATIOS: dict[str, Measure] = {
    "error: distance to a\nretrain, before noise": lambda point: _above_rounding(point.error),
    "efficiency:\nretrain / request": lambda point: point.ratio,
}
ROUNDING = 1e-10
LEAST_RANGE = 0.1  # smallest upper end of an axis in per cent
TABLES = ("mnist38", "covtype", "higgs", "syn54")  # each has one colour everywhere


def draw_speeds(singles: list[Single], least: dict[tuple[str, str], float], file: Path) -> None:
    """Draw the speed-up over retraining, one line per method and one panel per table."""
    names = list(dict.fromkeys(single.data for single in singles))
    order = list(dict.fromkeys(single.method.name for single in singles))
    titles = list(dict.fromkeys(single.method.title for single in singles))
    titles.sort(key=lambda title: order.index(title.partition(",")[0]))
    figure = Figure(
        figsize=(2.3 * len(names) + 3.5, 0.38 * len(titles) + 1.9), layout="constrained"
    )
    grid: Any = figure.subplots(1, len(names), squeeze=False, sharex=True, sharey=True)
    for name, ax in zip(names, grid.flat, strict=True):
        for one in singles:
            if one.data == name:
                _draw_speed(one, titles.index(one.method.title), least, ax)
        ax.axvline(1, color="0.5", linestyle="--", linewidth=1)
        ax.set(xscale="log", title=name)
        ax.grid(alpha=0.3)
        ax.margins(y=0.06)
    first = grid[0, 0]
    first.set_yticks(range(len(titles)), titles)
    first.invert_yaxis()
    handles = [
        first.plot([], [], "o", color=COLOURS[0], label="over the best named solver")[0],
        first.plot([], [], "o", color=COLOURS[0], mfc="none", label="over the fastest of all")[0],
        first.plot(
            [], [], "|", color=COLOURS[1], markersize=14, markeredgewidth=2.5, label="to reach"
        )[0],
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("One person leaves: time of a retrain over time of a request")
    figure.savefig(file, dpi=DPI)


def _draw_speed(one: Single, place: int, least: dict[tuple[str, str], float], ax: Axes) -> None:
    ax.plot(one.ratio_fastest, place, "o", color=COLOURS[0], mfc="none", markersize=8)
    ax.plot(one.ratio, place, "o", color=COLOURS[0], markersize=8)
    limit = least.get((one.data, one.method.title))
    if limit is not None:
        ax.plot(limit, place, "|", color=COLOURS[1], markersize=18, markeredgewidth=2.5)


def draw_sequences(runs: list[Removals], file: Path) -> None:
    """Draw account, true residual and budget over many removals, one panel per noise scale."""
    figure = Figure(figsize=(5.2 * len(runs), 4.2), layout="constrained")
    grid: Any = figure.subplots(1, len(runs), squeeze=False)
    for run, ax in zip(runs, grid.flat, strict=True):
        gone = [point.gone for point in run.checkpoints]
        lines = {
            "budget": [point.budget for point in run.checkpoints],
            "account: at most this is left": [point.spent for point in run.checkpoints],
            "true residual": [point.true for point in run.checkpoints],
        }
        for number, (name, values) in enumerate(lines.items()):
            style = "--" if name == "budget" else "-"
            marker = "" if name == "budget" else MARKERS[number]
            colour = "0.4" if name == "budget" else COLOURS[number]
            ax.plot(gone, values, style, color=colour, marker=marker, markersize=4, label=name)
        ax.set(yscale="log", xlabel="people who left", title=f"{run.data}, {run.method.title}")
        ax.grid(alpha=0.3)
    grid[0, 0].set_ylabel("norm of the gradient")
    grid[0, 0].legend(frameon=False)
    figure.savefig(file, dpi=DPI)


def draw_curves(points: list[Point], dial: str, file: Path) -> None:
    """Draw four measures against a parameter: one column per method, one line per table."""
    methods = list(dict.fromkeys(point.method for point in points))
    shape = (len(SAPES) + len(RATIOS), len(methods))
    figure = Figure(figsize=(3.4 * len(methods) + 1.2, 9.6), layout="constrained")
    panels: Any = figure.subplots(*shape, squeeze=False, sharex="col", sharey="row")
    for method, column in zip(methods, panels.T, strict=True):
        mine = [point for point in points if point.method == method]
        for measure, ax in zip((SAPES | RATIOS).values(), column, strict=True):
            _draw_lines(mine, lambda point: point.value, measure, ax)
            ax.set_xscale("log")
        for ax in column[len(SAPES) :]:
            ax.set_yscale("log")
        column[-1].axhline(1, color="0.5", linestyle="--", linewidth=1)
        column[0].set_title(method, fontsize=11)
        column[-1].set_xlabel(dial)
    _label_axes(panels, [*SAPES, *RATIOS])
    _draw_legend(figure, panels)
    figure.savefig(file, dpi=DPI)


def draw_trade_offs(panels_of: dict[str, list[Point]], file: Path) -> None:
    """Draw both errors against efficiency, one column per method and parameter."""
    figure = Figure(figsize=(2.9 * len(panels_of) + 1.2, 6.0), layout="constrained")
    panels: Any = figure.subplots(2, len(panels_of), squeeze=False, sharex="col")
    for (title, points), column in zip(panels_of.items(), panels.T, strict=True):
        for measure, ax in zip(SAPES.values(), column, strict=True):
            _draw_lines(points, lambda point: point.ratio, measure, ax, notes=True)
            ax.axvline(1, color="0.5", linestyle="--", linewidth=1)
            ax.set_xscale("log")
            ax.xaxis.set_minor_formatter(NullFormatter())
        column[0].set_title(title, fontsize=10)
        column[1].set_xlabel("efficiency: retrain / request")
    _label_axes(panels, list(SAPES))
    _draw_legend(figure, panels)
    figure.savefig(file, dpi=DPI)


def _above_rounding(error: float | None) -> float | None:
    """Return the error, or None if it is rounding error, which would stretch the axis."""
    return error if error is not None and error > ROUNDING else None


def _label_axes(panels: Any, names: list[str]) -> None:
    """Label the rows; axes in per cent begin at 0 and end above rounding error."""
    for name, ax in zip(names, panels[:, 0], strict=True):
        ax.set_ylabel(name)
    for ax in panels[: len(SAPES)].flat:
        ax.set_ylim(0, max(ax.get_ylim()[1], LEAST_RANGE))


def _draw_lines(
    points: Sequence[Point],
    x_of: Measure,
    y_of: Measure,
    ax: Axes,
    *,
    notes: bool = False,
) -> None:
    for number, name in enumerate(TABLES):
        marks = [
            (x, y, point.value)
            for point in points
            if point.data == name
            and (x := x_of(point)) is not None
            and (y := y_of(point)) is not None
        ]
        if not marks:
            continue
        xs, ys, _ = np.array(marks).T
        ax.plot(xs, ys, color=COLOURS[number], marker=MARKERS[number], label=name)
        if notes:
            for x, y, value in (marks[0], marks[-1]):
                ax.annotate(
                    f"{value:g}", (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8
                )
    ax.grid(alpha=0.3)
    ax.margins(0.1)


def _draw_legend(figure: Figure, panels: Any) -> None:
    handles: dict[str, Any] = {}
    for ax in panels.flat:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper center",
        ncols=len(handles),
        frameon=False,
    )
