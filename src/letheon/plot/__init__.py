"""Plots in the style of scikit-learn's displays: data in attributes, drawing in `plot`.

They need matplotlib (``pip install letheon[plot]``), which is imported on first use.
"""

from letheon.plot._comparison import EvaluationDisplay, ParetoDisplay, pareto_front
from letheon.plot._evidence import AttackDisplay, MonitorDisplay
from letheon.plot._models import (
    AccuracyShardsDisplay,
    ForestTreeDisplay,
    PlanDisplay,
    SkeletonDisplay,
)

__all__ = [
    "AccuracyShardsDisplay",
    "AttackDisplay",
    "EvaluationDisplay",
    "ForestTreeDisplay",
    "MonitorDisplay",
    "ParetoDisplay",
    "PlanDisplay",
    "SkeletonDisplay",
    "pareto_front",
]
