"""The survey's measures, which compare an unlearned model with a retrained one.

Efficiency, effectiveness, consistency and certifiability (section 3 of Mercuri et al., 2022),
their analogues for regression, and (alpha, beta)-accuracy and strength over a sequence of removals.
All are pure functions of times, parameters, predictions, losses or work. Each returns a `Measure`:
a value with its confidence interval, number of observations, direction and basis. `over_seeds` and
`geometric_mean` combine several runs into one measure.
"""

from letheon.measures._consistency import (
    agreement_within,
    align_classes,
    kl_consistency,
    kl_gaussian,
    output_consistency,
    parameter_consistency,
    prediction_gap,
)
from letheon.measures._intervals import bootstrap
from letheon.measures._measure import (
    KNOWN_MEASURES,
    Better,
    Measure,
    TextRepr,
    by_proof,
    from_plain,
    geometric_mean,
    make_measure,
    over_seeds,
)
from letheon.measures._performance import (
    certifiability,
    certifiability_from_predictions,
    effectiveness,
    effectiveness_from_values,
    efficiency,
    gradient_residual,
    gradient_residual_of,
    sape,
)
from letheon.measures._sequences import Strength, alpha_beta_accuracy, kl_of_laws, strength

__all__ = [
    "KNOWN_MEASURES",
    "Better",
    "Measure",
    "Strength",
    "TextRepr",
    "agreement_within",
    "align_classes",
    "alpha_beta_accuracy",
    "bootstrap",
    "by_proof",
    "certifiability",
    "certifiability_from_predictions",
    "effectiveness",
    "effectiveness_from_values",
    "efficiency",
    "from_plain",
    "geometric_mean",
    "gradient_residual",
    "gradient_residual_of",
    "kl_consistency",
    "kl_gaussian",
    "kl_of_laws",
    "make_measure",
    "output_consistency",
    "over_seeds",
    "parameter_consistency",
    "prediction_gap",
    "sape",
    "strength",
]
