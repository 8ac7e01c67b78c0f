"""Linear models that forget by small steps and secret noise, with honest certificates."""

from letheon.linear._account import Account
from letheon.linear._calibrate import gaussian_epsilon, gaussian_mu
from letheon.linear._data_free import fingerprints
from letheon.linear._deltagrad import DeltaGradClassifier
from letheon.linear._descent import DescentToDeleteClassifier
from letheon.linear._descent_settings import plan_of, scale_of
from letheon.linear._fisher import FisherClassifier
from letheon.linear._influence import InfluenceClassifier, InfluenceRegressor
from letheon.linear._noise import Sealed
from letheon.linear._published import PublishedModel

__all__ = [
    "Account",
    "DeltaGradClassifier",
    "DescentToDeleteClassifier",
    "FisherClassifier",
    "InfluenceClassifier",
    "InfluenceRegressor",
    "PublishedModel",
    "Sealed",
    "fingerprints",
    "gaussian_epsilon",
    "gaussian_mu",
    "plan_of",
    "scale_of",
]
