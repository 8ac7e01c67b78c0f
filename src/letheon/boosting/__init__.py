"""Gradient boosting that forgets exactly, and the choice of its skeleton."""

from letheon.boosting._estimators import BoostingClassifier, BoostingRegressor
from letheon.boosting._model import BoostingCost
from letheon.boosting._skeleton import SkeletonSearch, SkeletonSize, suggest_skeleton

__all__ = [
    "BoostingClassifier",
    "BoostingCost",
    "BoostingRegressor",
    "SkeletonSearch",
    "SkeletonSize",
    "suggest_skeleton",
]
