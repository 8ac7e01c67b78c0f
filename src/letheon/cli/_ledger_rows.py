"""Rows for a model from a file."""

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["read_rows"]


def read_rows(
    path: Path, *, target: str | None, ids: str | None, as_array: bool
) -> tuple[Any, Any, Any]:
    """Return X, y and ids of a file.

    Parameters
    ----------
    path : Path
        ``.npz`` with arrays X, y and perhaps ids; ``.csv`` or ``.parquet`` with named columns.
    target, ids : str, optional
        Columns of a table; X is what is left of it. Without `ids` people are numbered from 0.
    as_array : bool
        Whether the model was fitted on an array, and not on a table with names of columns.
    """
    if path.suffix == ".npz":
        return _from_arrays(path)
    if path.suffix not in (".csv", ".parquet"):
        raise ValueError(f"{path.name} is no .npz, .csv or .parquet file")
    X, y, people = _from_table(_table(path), path, target, ids)
    return X.to_numpy() if as_array else X, y, people


def _from_arrays(path: Path) -> tuple[Any, Any, Any]:
    with np.load(path, allow_pickle=False) as file:
        missing = [name for name in ("X", "y") if name not in file]
        if missing:
            raise ValueError(f"{path.name} has no array {missing[0]!r}; it has {sorted(file)}")
        return file["X"], file["y"], file.get("ids")


def _table(path: Path) -> Any:
    try:
        import pandas as pd
    except ModuleNotFoundError:
        return _polars_table(path)
    return pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)


def _polars_table(path: Path) -> Any:
    try:
        import polars as pl
    except ModuleNotFoundError as error:
        raise ValueError(
            f"to read {path.name} pandas or polars must be installed; or give an .npz file with "
            "the arrays X, y and ids"
        ) from error
    return pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)


def _from_table(
    table: Any, path: Path, target: str | None, ids: str | None
) -> tuple[Any, Any, Any]:
    import narwhals as nw

    frame = nw.from_native(table, eager_only=True)
    if target is None:
        raise ValueError(f"say which column of {path.name} is the target: --target COLUMN")
    for name in (target, ids):
        if name is not None and name not in frame.columns:
            raise ValueError(f"{path.name} has no column {name!r}; it has {frame.columns}")
    X = frame.drop([name for name in (target, ids) if name is not None])
    people = None if ids is None else frame[ids].to_list()
    return X.to_native(), frame[target].to_numpy(), people
