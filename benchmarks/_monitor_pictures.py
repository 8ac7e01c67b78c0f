"""Pictures of the monitor's streams."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks._monitor_streams import KINDS, ORACLE, WATCHERS
from benchmarks._monitor_summary import Total
from letheon.plot._axes import COLOURS

ACCEPTED = 5.0


def draw(totals: Mapping[tuple[str, str], Total], file: Path) -> None:
    """Draw breaches missed and retrains, one group of bars per kind of stream."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = (*WATCHERS, ORACLE)
    for number, name in enumerate(names):
        places = [at + 0.2 * (number - 1.5) for at in range(len(KINDS))]
        found = [totals[name, kind] for kind in KINDS]
        colour = COLOURS[number]
        if name != ORACLE:
            left.bar(places, [t.breaches_missed for t in found], 0.18, color=colour, label=name)
        right.bar(places, [t.retrains for t in found], 0.18, color=colour, label=name)
    left.axhline(ACCEPTED, color="0.3", linestyle="--", linewidth=1, label="accepted: 5 %")
    left.set(title="Breaches that were missed", ylabel="% of breaches")
    right.set(title="Retrains", ylabel="per 100 requests")
    for ax in (left, right):
        ax.set_xticks(range(len(KINDS)), KINDS)
        ax.grid(axis="y", alpha=0.3)
    handles, labels = left.get_legend_handles_labels()
    oracle = right.get_legend_handles_labels()
    figure.legend(
        [*handles, oracle[0][-1]],
        [*labels, oracle[1][-1]],
        loc="outside lower center",
        ncols=5,
        frameon=False,
    )
    figure.savefig(file, dpi=110)
