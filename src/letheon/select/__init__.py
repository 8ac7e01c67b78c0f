"""Choosing a method: who is applicable, who is within tolerance, who is fastest.

The procedure of the survey's section 6.3 ("Candidate selection", "Parameter trade-offs and method
selection"). `choose` returns a `Comparison` with the reason for the choice in words.
"""

from letheon.select._candidates import Candidate
from letheon.select._choose import choose
from letheon.select._comparison import Comparison
from letheon.select._cost import Cost
from letheon.select._need import Need
from letheon.select._tolerances import Check, Tolerances
from letheon.select._tried import Tried
from letheon.select._tune import Tuning, tune_efficiency

__all__ = [
    "Candidate",
    "Check",
    "Comparison",
    "Cost",
    "Need",
    "Tolerances",
    "Tried",
    "Tuning",
    "choose",
    "tune_efficiency",
]
