"""The survey's measures of an unlearned model against the naively retrained one.

Efficiency, effectiveness, the consistencies and certifiability (section 3 of Mercuri et al.,
2022), their analogues for regression, (alpha, beta)-accuracy and strength over a sequence of
removals, as pure functions of times, parameters, predictions, losses and work. Each returns a
`Measure`: a value with its interval, its number of observations, which way is better, and what it
rests on. `over_seeds` and `geometric_mean` make one measure of several runs.
"""

from letheon.measures._accuracy import alpha_beta_accuracy
from letheon.measures._certifiability import (
    certifiability,
    certifiability_from_predictions,
    sape,
)
from letheon.measures._classes import align_classes
from letheon.measures._consistency import (
    kl_consistency,
    output_consistency,
    parameter_consistency,
)
from letheon.measures._effectiveness import effectiveness, effectiveness_from_values
from letheon.measures._efficiency import efficiency
from letheon.measures._laws import kl_of_laws
from letheon.measures._measure import Measure, by_proof
from letheon.measures._regression import agreement_within, kl_gaussian, prediction_gap
from letheon.measures._residual import gradient_residual, gradient_residual_of
from letheon.measures._runs import geometric_mean, over_seeds
from letheon.measures._strength import Strength, strength

__all__ = [
    "Measure",
    "Strength",
    "agreement_within",
    "align_classes",
    "alpha_beta_accuracy",
    "by_proof",
    "certifiability",
    "certifiability_from_predictions",
    "effectiveness",
    "effectiveness_from_values",
    "efficiency",
    "geometric_mean",
    "gradient_residual",
    "gradient_residual_of",
    "kl_consistency",
    "kl_gaussian",
    "kl_of_laws",
    "output_consistency",
    "over_seeds",
    "parameter_consistency",
    "prediction_gap",
    "sape",
    "strength",
]
