"""The survey's measures of an unlearned model against the naively retrained one.

Efficiency, effectiveness, three consistencies and certifiability (section 3 of Mercuri et al.,
2022), as pure functions of times, parameters and predictions. Each returns a `Measure`: a value
with its interval, its number of observations, which way is better, and what it rests on.
"""

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
from letheon.measures._measure import Measure, by_proof

__all__ = [
    "Measure",
    "align_classes",
    "by_proof",
    "certifiability",
    "certifiability_from_predictions",
    "effectiveness",
    "effectiveness_from_values",
    "efficiency",
    "kl_consistency",
    "output_consistency",
    "parameter_consistency",
    "sape",
]
