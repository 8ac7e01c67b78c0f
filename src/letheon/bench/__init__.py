"""A benchmark of all methods on the survey's data sets, as proposed in its conclusion.

`run` measures every method with both extremes of its efficiency parameters through
`letheon.evaluate`. The result of every experiment (a *cell*) is written to its own file, so an
interrupted run can be resumed. `write_results` shows the numbers next to those that the survey
collected (its Tables 2 and 3).
"""

from letheon.bench._grid import (
    DATASETS,
    METHODS,
    QUICK_DATASETS,
    BenchmarkCell,
    BenchmarkOptions,
    list_cells,
)
from letheon.bench._report import write_results
from letheon.bench._run import describe_machine, read_cells, run
from letheon.bench._tables import (
    PUBLISHED,
    PublishedLine,
    ResultLine,
    Spread,
    brief_table,
    main_table,
    make_lines,
)
from letheon.evaluation.report import Table

__all__ = [
    "DATASETS",
    "METHODS",
    "PUBLISHED",
    "QUICK_DATASETS",
    "BenchmarkCell",
    "BenchmarkOptions",
    "PublishedLine",
    "ResultLine",
    "Spread",
    "Table",
    "brief_table",
    "describe_machine",
    "list_cells",
    "main_table",
    "make_lines",
    "read_cells",
    "run",
    "write_results",
]
