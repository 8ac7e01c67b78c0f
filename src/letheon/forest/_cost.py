"""What a request costs a forest: rows of the subtrees that have to be grown again."""

from dataclasses import dataclass

from letheon import _core
from letheon.base import Outcome
from letheon.forest._settings import Settings


@dataclass(frozen=True)
class ForgetCost:
    """What forgetting some people would take; nothing was changed.

    Attributes
    ----------
    rows : int
        Rows of the subtrees that would be grown again, summed over the subtrees.
    subtrees : int
        Subtrees that would be dropped.
    trees : int
        Trees that hold a row of these people.
    share : float
        `rows` as a share of all rows of all trees: 1.0 is a retrain.
    """

    rows: int
    subtrees: int
    trees: int
    share: float


def cost_of(report: _core.Report, settings: Settings, n_rows: int) -> ForgetCost:
    """Return the cost that the core reports; `n_rows` is the number of rows that remain."""
    return ForgetCost(
        rows=report.rebuilt_rows,
        subtrees=report.rebuilt_nodes,
        trees=report.touched_trees,
        share=_share(report, settings, n_rows),
    )


def outcome_of(report: _core.Report, settings: Settings, n_rows: int) -> Outcome:
    """Return what a receipt says of a change.

    The work is the rows of dropped subtrees as a share of the rows of all trees. A subtree has
    fewer levels than its tree, so this is more than the time it takes to grow them.
    """
    if report.rescaled:
        rebuilt = {"trees": settings.n_trees, "rows": report.rebuilt_rows}
    else:
        rebuilt = {"subtrees": report.rebuilt_nodes, "rows": report.rebuilt_rows}
    return Outcome(_share(report, settings, n_rows), rebuilt)


def _share(report: _core.Report, settings: Settings, n_rows: int) -> float:
    if report.rescaled:
        return 1.0
    in_trees = n_rows * settings.n_trees * settings.subsample
    return min(1.0, report.rebuilt_rows / max(in_trees, 1.0))
