"""Linear models that forget by small steps and secret noise, with honest certificates."""

from letheon.convex._account import Account
from letheon.convex._deltagrad import DeltaGradClassifier
from letheon.convex._descent import DescentToDeleteClassifier
from letheon.convex._fisher import FisherClassifier
from letheon.convex._influence import InfluenceClassifier, InfluenceRegressor
from letheon.convex._noise import Sealed
from letheon.convex._published import PublishedModel

__all__ = [
    "Account",
    "DeltaGradClassifier",
    "DescentToDeleteClassifier",
    "FisherClassifier",
    "InfluenceClassifier",
    "InfluenceRegressor",
    "PublishedModel",
    "Sealed",
]
