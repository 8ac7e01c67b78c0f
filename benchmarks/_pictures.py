"""Pictures of the results, through `letheon.plot`."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks._accuracy import NAIVE, Run, measures
from letheon import Measure
from letheon.plot import AccuracyShardsDisplay, PlanDisplay

SETTINGS = ((1, 1), (5, 1), (20, 1), (5, 10), (20, 50))


def draw_accuracy(results: list[Run], file: Path) -> None:
    """Draw accuracy against shards, one panel per data set."""
    found = measures(results)
    names = list(dict.fromkeys(data for data, _, _ in found))
    figure = Figure(figsize=(5.2 * len(names), 4.4), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for name, ax in zip(names, panels, strict=True):
        scores: dict[str, dict[int, Measure]] = {}
        naive = {}
        for (data, learner, n_shards), measure in found.items():
            if data == name and n_shards != NAIVE:
                scores.setdefault(learner, {})[n_shards] = measure
            elif data == name:
                naive[learner] = measure.value
        AccuracyShardsDisplay(scores, naive=naive).plot(ax)
        ax.set_title(name)
    figure.savefig(file, dpi=110)


def draw_plan(n_rows: int, state_bytes: int, file: Path) -> None:
    """Draw the planned speed-up against shards, slices and batch size."""
    mpl.use("agg")
    display = PlanDisplay.from_grid(n_rows, settings=SETTINGS, state_bytes=state_bytes)
    display.figure_.savefig(file, dpi=110, bbox_inches="tight")
