"""Choosing a method: the fastest applicable method within the tolerances.

This is the procedure of the survey's section 6.3 ("Candidate selection", "Parameter trade-offs and
method selection"). `choose` returns a `Comparison` that explains the choice.
"""

from letheon.select._candidates import Candidate, Need, default_candidates, short_name
from letheon.select._choose import choose
from letheon.select._comparison import Comparison
from letheon.select._results import (
    CandidateResult,
    Check,
    Cost,
    Tolerances,
    Tuning,
    tune_efficiency,
)

__all__ = [
    "Candidate",
    "CandidateResult",
    "Check",
    "Comparison",
    "Cost",
    "Need",
    "Tolerances",
    "Tuning",
    "choose",
    "default_candidates",
    "short_name",
    "tune_efficiency",
]
