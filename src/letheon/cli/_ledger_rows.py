"""Rows for a model from a file that was named on the command line."""

from pathlib import Path
from typing import Any

from letheon.cli._ledger_common import UsageError
from letheon.ledger._table_files import Columns, TableFileError, read_table_file

__all__ = ["Columns", "read_rows"]


def read_rows(path: Path, columns: Columns) -> tuple[Any, Any, Any]:
    """Return X, y and ids of a file; what is wrong with it is wrong usage."""
    try:
        return read_table_file(path, columns)
    except TableFileError as error:
        raise UsageError(str(error)) from error
