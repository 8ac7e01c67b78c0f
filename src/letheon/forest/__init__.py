"""Forests that forget exactly (DaRE), and the choice of their efficiency parameter."""

from letheon.forest._estimators import DaREForestClassifier, DaREForestRegressor
from letheon.forest._model import ForestTree, ForgetCost
from letheon.forest._tune import RandomDepthSearch, tune_random_depth

__all__ = [
    "DaREForestClassifier",
    "DaREForestRegressor",
    "ForestTree",
    "ForgetCost",
    "RandomDepthSearch",
    "tune_random_depth",
]
