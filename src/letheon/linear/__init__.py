"""Linear models that forget by a few optimisation steps and secret noise.

Most of them have certified guarantees.
"""

from letheon.linear._account import Account
from letheon.linear._base import LinearClassifier
from letheon.linear._calibrate import gaussian_epsilon, gaussian_mu
from letheon.linear._deltagrad import DeltaGradClassifier
from letheon.linear._descent import DescentToDeleteClassifier
from letheon.linear._descent_plan import choose_noise_scale, plan_descent
from letheon.linear._fisher import FisherClassifier
from letheon.linear._influence import InfluenceClassifier, InfluenceRegressor
from letheon.linear._model import PublishedModel
from letheon.linear._newton import fingerprint_rows
from letheon.noise import SecretArray

__all__ = [
    "Account",
    "DeltaGradClassifier",
    "DescentToDeleteClassifier",
    "FisherClassifier",
    "InfluenceClassifier",
    "InfluenceRegressor",
    "LinearClassifier",
    "PublishedModel",
    "SecretArray",
    "choose_noise_scale",
    "fingerprint_rows",
    "gaussian_epsilon",
    "gaussian_mu",
    "plan_descent",
]
