"""A benchmark of all methods on the survey's data sets, as its conclusion asks for.

`run` measures every method with both extremes of its efficiency parameters through
`letheon.evaluate`, one file per cell, so that a run that was killed goes on where it was.
`write_results` sets the numbers beside those that the survey collected (its Tables 2 and 3).
"""

from letheon.bench._grid import DATASETS, METHODS, QUICK_DATASETS, Cell, Options, cells_of
from letheon.bench._report import write_results
from letheon.bench._run import describe_machine, read_cells, run
from letheon.bench._tables import (
    PUBLISHED,
    Line,
    Published,
    Spread,
    brief_table,
    lines_of,
    main_table,
)
from letheon.evaluation.report import Table

__all__ = [
    "DATASETS",
    "METHODS",
    "PUBLISHED",
    "QUICK_DATASETS",
    "Cell",
    "Line",
    "Options",
    "Published",
    "Spread",
    "Table",
    "brief_table",
    "cells_of",
    "describe_machine",
    "lines_of",
    "main_table",
    "read_cells",
    "run",
    "write_results",
]
