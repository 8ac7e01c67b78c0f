"""One column of a data frame as numbers, or as codes with a dictionary of values."""

import math
import re
from collections.abc import Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from letheon.data._tables import plain_floats

Floats = NDArray[np.float64]
# A float64 represents every integer up to here.
_LARGEST_INTEGER = 2**53
_FEW_ROWS = 50  # a loop over so few values is faster than a search for the distinct ones
_NUMBER_KIND = re.compile("(U?Int|Float)(8|16|32|64)|bool|boolean", re.IGNORECASE)


def number_kind(series: "nw.Series[Any]") -> str:
    """Return the name of the dtype of a column of numbers."""
    kind = _native_kind(series)
    if not _NUMBER_KIND.fullmatch(kind):
        raise ValueError(
            f"column {series.name!r} has dtype {kind}, which a model cannot save; convert it to "
            "float64 or int64"
        )
    return kind


def _native_kind(series: "nw.Series[Any]") -> str:
    if series.implementation.is_pandas():
        return str(series.to_native().dtype)
    return str(series.dtype)


def column_numbers(series: "nw.Series[Any]") -> Floats:
    """Return a column of numbers as float64; NaN is missing."""
    present = series.drop_nulls() if series.dtype.is_integer() else series.head(0)
    if len(present):
        for extreme in (present.min(), present.max()):
            if abs(int(extreme)) > _LARGEST_INTEGER:
                raise ValueError(
                    f"column {series.name!r} contains {extreme}; expected integers of at most "
                    "2**53. Pass the column as text or as float"
                )
    array = series.cast(nw.Float64).fill_null(float("nan")).to_numpy()
    return plain_floats(np.array(array, np.float64))


def column_codes(series: "nw.Series[Any]") -> tuple[str, NDArray[np.int32], list[Any]]:
    """Return kind, codes and dictionary of a column of texts, categories or objects."""
    dtype, native = series.dtype, series.to_native()
    if dtype == nw.Enum or (dtype == nw.Categorical and getattr(native.dtype, "ordered", False)):
        known = series.cat.get_categories().to_list()
        kind = "ordered" if series.implementation.is_pandas() else "Enum"
    else:
        known = None
        kind = _native_kind(series)
    if dtype not in (nw.String, nw.Categorical, nw.Enum, nw.Object):
        native_dtype = getattr(native, "dtype", dtype)
        raise ValueError(
            f"column {series.name!r} has dtype {native_dtype}; expected numbers, texts, "
            "categories or booleans. Convert the column first, for example a date to days, or drop "
            "it"
        )
    return kind, *encode_series(series, known)


def encode_series(
    series: "nw.Series[Any]", known: list[Any] | None = None
) -> tuple[NDArray[np.int32], list[Any]]:
    """Return the codes and the dictionary of a column of texts, categories or objects.

    `known` is the dictionary if the column has one. The code -1 is a missing value.
    """
    if len(series) <= _FEW_ROWS or not _is_text(series):
        return encode_values(series.to_list(), known, series.name)
    places, distinct = _find_distinct(series)
    codes, values = encode_values(distinct, known, series.name)
    return np.append(codes, np.int32(-1))[places], values


def _is_text(series: "nw.Series[Any]") -> bool:
    if series.dtype == nw.Object and series.implementation.is_pandas():
        import pandas as pd

        return bool(pd.api.types.infer_dtype(series.to_native(), skipna=True) == "string")
    return series.dtype in (nw.String, nw.Categorical, nw.Enum)


def _find_distinct(series: "nw.Series[Any]") -> tuple[NDArray[Any], list[Any]]:
    """Return where each value is in the list of distinct values, -1 if missing, and this list."""
    if series.implementation.is_pandas():
        import pandas as pd

        places, distinct = pd.factorize(series.to_native())
        return places, distinct.tolist()
    texts = series.cast(nw.String)
    ranks = texts.rank("dense").fill_null(0).to_numpy()  # from 1, in the order of the texts
    return ranks.astype(np.int64) - 1, texts.drop_nulls().unique().sort().to_list()


def encode_values(
    values: Sequence[Any], known: list[Any] | None, name: str
) -> tuple[NDArray[np.int32], list[Any]]:
    """Return the codes and the dictionary of a column of objects; -1 is missing."""
    values = [_plain_value(value, name) for value in values]
    refuse_mixed_kinds(set(map(type, values)), name)
    if known is None:
        known = sorted(set(values) - {None}, key=lambda value: (type(value).__name__, value))
    numbers = {value: code for code, value in enumerate(known)}
    numbers[None] = -1
    return np.array([numbers[value] for value in values], np.int32), list(known)


def _plain_value(value: Any, name: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, str | int):  # a subclass has state of its own
        return str.__str__(value) if isinstance(value, str) else int(value)
    if isinstance(value, float):
        # 1.0 and 1 are equal, so one of them must represent both.
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    if type(value).__name__ == "NAType":
        return None
    raise ValueError(
        f"column {name!r} contains a value of type {type(value).__name__}; expected numbers or "
        "texts"
    )


def refuse_mixed_kinds(types: set[type], name: str) -> None:
    """Raise for booleans and numbers in one column: True and 1 are equal."""
    if {bool} < types - {type(None), str}:
        raise ValueError(f"column {name!r} mixes booleans and numbers; expected values of one kind")
