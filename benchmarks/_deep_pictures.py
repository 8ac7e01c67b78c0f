"""Plots of the results of networks, drawn from the numbers in the report file."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from letheon.plot._axes import COLOURS, MARKERS, plain_ticks

__all__ = ["draw_residuals", "draw_trade_off"]

DPI = 130
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
Series = dict[str, dict[str, list[float]]]


def draw_residuals(panels: Series, file: Path) -> None:
    """Draw relative residuals over blocks, one panel per network, one line per removal."""
    figure = Figure(figsize=(6.2 * len(panels), 4.4), layout="constrained")
    for (title, series), ax in zip(
        panels.items(), np.ravel(figure.subplots(1, len(panels), squeeze=False)), strict=True
    ):
        shades = np.linspace(0, 1, max(len(series), 2))
        for (block, values), shade in zip(series.items(), shades, strict=False):
            colour = (0.85 * shade, 0.35, 0.9 - 0.8 * shade)
            start = int(block)
            drawn = np.array(values)
            drawn[drawn <= 0] = np.nan
            ax.plot(start + np.arange(len(drawn)) + 1, drawn, color=colour, lw=1.3)
            ax.plot(start + 1, drawn[0], "o", color=colour, markersize=5)
        ax.axhline(1, color="0.5", linestyle="--", linewidth=1)
        ax.set(yscale="log", xlabel="block", title=title)
        ax.grid(alpha=0.3)
        ax.set_ylabel("$\\Delta_t / \\|V_t\\|_1$")
    figure.suptitle("Residual memory of one person; a dot is the block that they left")
    figure.savefig(file, dpi=DPI)


Point = tuple[str, float, float]


def draw_trade_off(points: list[Point], floor: float | None, file: Path) -> None:
    """Draw the speed-up over naive retraining against the agreement with it."""
    figure = Figure(figsize=(7.4, 4.8), layout="constrained")
    ax = figure.subplots()
    families = list(dict.fromkeys(name.partition(",")[0] for name, _, _ in points))
    for number, family in enumerate(families):
        mine = [point for point in points if point[0].partition(",")[0] == family]
        ax.plot(
            [point[1] for point in mine], [point[2] for point in mine], MARKERS[number],
            color=COLOURS[number], label=family, markersize=8,
        )  # fmt: skip
        for name, ratio, agrees in mine:
            text = name.partition(",")[2].strip()
            ax.annotate(text, (ratio, agrees), xytext=(5, 4), textcoords="offset points", size=7)
    ax.axvline(1, color="0.5", linestyle="--", linewidth=1)
    if floor is not None:
        ax.axhline(floor, color="0.5", linestyle=":", linewidth=1)
        text = "two naive retrains"
        ax.annotate(text, (1, floor), xytext=(4, 3), textcoords="offset points", size=8)
    ax.set(xscale="log", xlabel="naive retrain / request", ylabel="equal answers, %")
    ax.margins(x=0.15, y=0.1)
    low, high = ax.get_xlim()
    plain_ticks(ax, [tick for tick in TICKS if low <= tick <= high])
    ax.grid(alpha=0.3)
    ax.legend(frameon=False)
    figure.suptitle("Speed-up against agreement with the tuned naive retrain")
    figure.savefig(file, dpi=DPI)
