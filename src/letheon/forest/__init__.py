"""Forests that forget exactly (DaRE), and how to choose their efficiency parameter."""

from letheon.forest._classifier import DaREForestClassifier
from letheon.forest._cost import ForgetCost
from letheon.forest._inspect import ForestTree
from letheon.forest._regressor import DaREForestRegressor
from letheon.forest._tune import RandomDepthSearch, tune_random_depth

__all__ = [
    "DaREForestClassifier",
    "DaREForestRegressor",
    "ForestTree",
    "ForgetCost",
    "RandomDepthSearch",
    "tune_random_depth",
]
