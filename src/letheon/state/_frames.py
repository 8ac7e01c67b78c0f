"""Codecs of pandas and polars frames and series: column names, dtypes and values.

The index of a pandas frame is not stored. A column is a dict with its dtype and

- numbers, bools, dates and durations: the values, and where one is missing a mask;
- texts: the values, None where one is missing (how the library stores them is its own affair);
- categories: codes and categories (pandas), or texts (polars, whose codes depend on what else the
  process has seen).

Only dtypes in the tables below can be read back, so a file cannot name anything else.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import CorruptFileError, UnsupportedStateError
from letheon.state._budget import require_distinct_hashes
from letheon.state._plans import Codec

_MASKED = re.compile("U?Int(8|16|32|64)|Float(32|64)|boolean")
# A name in the database of time zones, never a path; or a fixed offset.
_ZONE = r"(?!dateutil)(?:[A-Za-z][\w+-]{0,31}(?:/[A-Za-z][\w+-]{0,31}){0,2}|(?:UTC)?[+-]\d\d:\d\d)"
_ZONED = re.compile(rf"datetime64\[(s|ms|us|ns), {_ZONE}\]", re.ASCII)
_TEMPORAL = re.compile(rf"Date|Time|(Datetime|Duration)\((ms|us|ns)(?:, ({_ZONE}))?\)", re.ASCII)
_COLUMN_BYTES = 6144
_TEXT_BYTES = 160
_PLAIN_POLARS = frozenset(
    f"{kind}{bits}" for kind in ("Int", "UInt", "Float") for bits in (8, 16, 32, 64)
) - {"Float8", "Float16"} | {"Boolean"}

Plain = dict[str, Any]


def _refusal(dtype: Any) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"a column of dtype {dtype} has no canonical bytes; convert it to numbers, texts, "
        "categories or dates"
    )


def _require(condition: Any, what: str) -> None:
    if not condition:
        raise CorruptFileError(f"not a valid frame: {what}")


def _pandas_column(series: Any) -> Plain:
    """Return a pandas column as plain values."""
    import pandas as pd

    dtype = series.dtype
    if isinstance(dtype, np.dtype):
        return {"dtype": str(dtype), "values": series.to_numpy()}
    if isinstance(dtype, pd.CategoricalDtype):
        return {
            "dtype": "category",
            "values": series.cat.codes.to_numpy().astype(np.int64),
            "categories": _pandas_column(pd.Series(dtype.categories)),
            "ordered": bool(dtype.ordered),
        }
    if isinstance(dtype, pd.StringDtype):
        kind = "string" if dtype.na_value is pd.NA else "str"
        return {"dtype": kind, "values": series.to_numpy(dtype=object, na_value=None)}
    name = str(dtype)
    if _MASKED.fullmatch(name):
        mask = series.isna().to_numpy()
        base = np.dtype(dtype.numpy_dtype)
        values = series.to_numpy(dtype=base, na_value=base.type(0))
        return {"dtype": name, "values": values, "mask": mask}
    if _ZONED.fullmatch(name):
        universal = series.dt.tz_convert("UTC").dt.tz_localize(None)
        return {"dtype": name, "values": universal.to_numpy()}
    raise _refusal(dtype)


def _pandas_series(plain: Plain) -> Any:
    """Return the pandas column of plain values."""
    import pandas as pd

    dtype, values = plain["dtype"], plain["values"]
    _require(isinstance(values, np.ndarray) and values.ndim == 1, "a column")
    if dtype == "category":
        labels = _pandas_series(plain["categories"])
        require_distinct_hashes(labels.to_numpy(dtype=object))
        categories = pd.Index(labels)
        codes = pd.Categorical.from_codes(values, categories=categories, ordered=plain["ordered"])
        return pd.Series(codes)
    if dtype in {"str", "string"}:
        missing = pd.NA if dtype == "string" else np.nan
        _require(_all_texts(values), "texts")
        return pd.Series(values, dtype=pd.StringDtype(na_value=missing))
    if "mask" in plain:
        _require(_MASKED.fullmatch(dtype), "a dtype")
        series = pd.Series(values).astype(dtype)
        series[_mask(plain)] = pd.NA
        return series
    if _ZONED.fullmatch(dtype):
        zone = dtype.partition(", ")[2].rstrip("]")
        return pd.Series(values).dt.tz_localize("UTC").dt.tz_convert(zone)
    _require(dtype == str(values.dtype), "a dtype")
    return pd.Series(values)


def _all_texts(values: NDArray[Any]) -> bool:
    return values.dtype == object and all(v is None or type(v) is str for v in values)


def _mask(plain: Plain) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = plain["mask"]
    _require(mask.dtype == np.bool_ and mask.shape == plain["values"].shape, "a mask")
    return mask


def _polars_column(series: Any) -> Plain:
    """Return a polars column as plain values."""
    import polars as pl

    dtype = series.dtype
    if dtype == pl.String:
        return {"dtype": "String", "values": _object_array(series.to_list())}
    if dtype in (pl.Enum, pl.Categorical):
        plain = {"dtype": "Categorical", "values": _object_array(series.cast(pl.String).to_list())}
        if dtype == pl.Enum:
            plain |= {"dtype": "Enum", "categories": dtype.categories.to_list()}
        return plain
    name = str(dtype) if str(dtype) in _PLAIN_POLARS else _temporal_name(dtype)
    mask = series.is_null().to_numpy()
    physical = series.to_physical()
    filled = physical.fill_null(False if dtype == pl.Boolean else 0)
    return {"dtype": name, "values": filled.to_numpy(), "mask": np.array(mask)}


def _temporal_name(dtype: Any) -> str:
    kind = type(dtype).__name__ if not isinstance(dtype, type) else dtype.__name__
    if kind in {"Date", "Time"}:
        return kind
    if kind not in {"Datetime", "Duration"}:
        raise _refusal(dtype)
    zone = getattr(dtype, "time_zone", None)
    return f"{kind}({dtype.time_unit}{f', {zone}' if zone else ''})"


def _object_array(values: list[Any]) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _polars_series(plain: Plain) -> Any:
    """Return the polars column of plain values."""
    import polars as pl

    dtype, values = plain["dtype"], plain["values"]
    _require(isinstance(values, np.ndarray) and values.ndim == 1, "a column")
    if dtype in {"String", "Categorical", "Enum"}:
        _require(_all_texts(values), "texts")
        texts = pl.Series(values.tolist(), dtype=pl.String)
        if dtype == "String":
            return texts
        categorical = dtype == "Categorical"
        return texts.cast(pl.Categorical if categorical else pl.Enum(plain["categories"]))
    series = pl.Series(values).cast(_polars_dtype(dtype))
    mask = _mask(plain)
    return series.set(pl.Series(mask), None) if mask.any() else series


def _polars_dtype(name: str) -> Any:
    import polars as pl

    found = _TEMPORAL.fullmatch(name)
    if found is None:
        _require(name in _PLAIN_POLARS, f"the dtype {name!r}")
        return getattr(pl, name)
    kind: Any = getattr(pl, found[1] or name)
    if found[1] == "Datetime":
        return kind(found[2], found[3])
    return kind(found[2]) if found[1] else kind


def _pandas_frame_plain(frame: Any) -> Plain:
    if frame.columns.nlevels > 1:
        raise UnsupportedStateError("a frame with several levels of column names")
    columns = [_pandas_column(frame.iloc[:, i]) for i in range(frame.shape[1])]
    return {"names": list(frame.columns), "columns": columns, "n_rows": len(frame)}


def _pandas_frame(cls: Any, plain: Plain) -> Any:
    columns = [_pandas_series(column) for column in plain["columns"]]
    _check_lengths(plain, columns)
    frame = cls(dict(enumerate(columns)), index=range(plain["n_rows"]))
    frame.columns = plain["names"]
    return frame


def _polars_frame_plain(frame: Any) -> Plain:
    columns = [_polars_column(column) for column in frame.get_columns()]
    return {"names": frame.columns, "columns": columns, "n_rows": frame.height}


def _polars_frame(cls: Any, plain: Plain) -> Any:
    columns = [_polars_series(column) for column in plain["columns"]]
    _check_lengths(plain, columns)
    named = zip(plain["names"], columns, strict=True)
    return cls([column.alias(name) for name, column in named])


def _check_lengths(plain: Plain, columns: list[Any]) -> None:
    _require(all(len(column) == plain["n_rows"] for column in columns), "lengths of columns")
    _require(len(columns) == len(plain["names"]), "number of columns")


def _pandas_series_plain(series: Any) -> Plain:
    return {"name": series.name, "column": _pandas_column(series)}


def _polars_series_plain(series: Any) -> Plain:
    return {"name": series.name, "column": _polars_column(series)}


def _named_pandas(_: type, plain: Plain) -> Any:
    return _pandas_series(plain["column"]).rename(plain["name"])


def _named_polars(_: type, plain: Plain) -> Any:
    return _polars_series(plain["column"]).alias(plain["name"])


def _frame_cost(_: type, plain: Plain) -> int:
    n_rows: int = plain["n_rows"]
    _require(type(n_rows) is int and 0 <= n_rows < 2**62, "number of rows")
    return 8 * n_rows + sum(_column_cost(column) for column in plain["columns"])


def _series_cost(_: type, plain: Plain) -> int:
    return _column_cost(plain["column"])


def _column_cost(plain: Plain) -> int:
    """Return what a column takes beside its values: a copy of them, texts also as bytes."""
    total: int = _COLUMN_BYTES
    while True:
        values = plain["values"]
        _require(isinstance(values, np.ndarray), "a column")
        total += 2 * values.nbytes
        if values.dtype == object:
            total += sum(len(value) for value in values.ravel() if type(value) is str)
        categories = plain.get("categories")
        if not isinstance(categories, dict):
            return int(total) + _TEXT_BYTES * len(categories or ())
        total += _COLUMN_BYTES + _TEXT_BYTES * len(categories["values"])
        plain = categories


_PANDAS_FRAME = Codec(_pandas_frame_plain, _pandas_frame, "pandas.DataFrame", _frame_cost)
_PANDAS_SERIES = Codec(_pandas_series_plain, _named_pandas, "pandas.Series", _series_cost)
_POLARS_FRAME = Codec(_polars_frame_plain, _polars_frame, "polars.DataFrame", _frame_cost)
_POLARS_SERIES = Codec(_polars_series_plain, _named_polars, "polars.Series", _series_cost)

# Each under its public name and under the module that defines it, which differs by version.
CODECS: dict[str, Codec] = {
    "pandas.DataFrame": _PANDAS_FRAME,
    "pandas.core.frame.DataFrame": _PANDAS_FRAME,
    "pandas.Series": _PANDAS_SERIES,
    "pandas.core.series.Series": _PANDAS_SERIES,
    "polars.DataFrame": _POLARS_FRAME,
    "polars.dataframe.frame.DataFrame": _POLARS_FRAME,
    "polars.Series": _POLARS_SERIES,
    "polars.series.series.Series": _POLARS_SERIES,
}
