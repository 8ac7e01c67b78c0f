"""Where to draw, and how an axis of counts reads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "MARKERS", "new_axes", "plain_ticks"]

# Okabe and Ito: told apart by colour-blind readers too; markers help in print
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def new_axes(n_columns: int, width: float, height: float) -> "list[Axes]":
    """Return fresh axes side by side, or say how to get matplotlib."""
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib, which is not installed: pip install 'letheon[plot]'"
        ) from error
    _, axes = plt.subplots(
        1, n_columns, figsize=(width, height), layout="constrained", squeeze=False
    )
    return list(axes[0])


def plain_ticks(ax: "Axes", values: Sequence[float]) -> None:
    """Write the numbers themselves at a logarithmic x axis, at most eight of them."""
    step = -(-len(values) // 8)
    ticks = list(values)[::step]
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    # only those of x: the minor ticks of a logarithmic axis carry labels of their own
    ax.xaxis.minorticks_off()
