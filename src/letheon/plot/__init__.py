"""Plots, as scikit-learn's displays: data in attributes, drawing in `plot`.

Needs matplotlib (``pip install letheon[plot]``), which is imported when something is drawn.
"""

from letheon.plot._attack import AttackDisplay
from letheon.plot._evaluation import EvaluationDisplay
from letheon.plot._monitor import MonitorDisplay
from letheon.plot._pareto import ParetoDisplay, pareto_front
from letheon.plot._sharded import AccuracyShardsDisplay, PlanDisplay
from letheon.plot._tree import ForestTreeDisplay

__all__ = [
    "AccuracyShardsDisplay",
    "AttackDisplay",
    "EvaluationDisplay",
    "ForestTreeDisplay",
    "MonitorDisplay",
    "ParetoDisplay",
    "PlanDisplay",
    "pareto_front",
]
