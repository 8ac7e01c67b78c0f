"""Linear models that forget by small steps and secret noise, with honest certificates."""

from letheon.convex._account import Account
from letheon.convex._influence import InfluenceClassifier, InfluenceRegressor
from letheon.convex._noise import Sealed
from letheon.convex._published import PublishedModel

__all__ = [
    "Account",
    "InfluenceClassifier",
    "InfluenceRegressor",
    "PublishedModel",
    "Sealed",
]
