"""A benchmark of all methods on the survey's data sets, as its conclusion asks for.

`run` measures every method with both extremes of its efficiency parameters through
`letheon.evaluate`, one file per cell, so that a run that was killed goes on where it was.
`write_results` sets the numbers beside those that the survey collected (its Tables 2 and 3).
"""

from letheon.bench._machine import describe_machine
from letheon.bench._markdown import Table

__all__ = ["Table", "describe_machine"]
