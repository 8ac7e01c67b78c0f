"""Nearest neighbours with exact forgetting: a vector index, a classifier and a regressor."""

from letheon.neighbors._estimators import KNeighborsClassifier, KNeighborsRegressor
from letheon.neighbors._index import NearestRows, VectorIndex

__all__ = ["KNeighborsClassifier", "KNeighborsRegressor", "NearestRows", "VectorIndex"]
