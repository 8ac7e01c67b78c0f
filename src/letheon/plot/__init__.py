"""Plots, as scikit-learn's displays: data in attributes, drawing in `plot`.

Needs matplotlib (``pip install letheon[plot]``), which is imported when something is drawn.
"""

from letheon.plot._comparison import EvaluationDisplay, ParetoDisplay, pareto_front
from letheon.plot._evidence import AttackDisplay, MonitorDisplay
from letheon.plot._models import AccuracyShardsDisplay, ForestTreeDisplay, PlanDisplay

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
