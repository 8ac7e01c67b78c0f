"""Codecs for random generators, sparse matrices, partials, paths and data frames.

The index of a pandas frame is not stored. A column is stored as a dict with its dtype and

- for numbers, bools, dates and durations: the values, and a mask if some values are missing;
- for texts: the values, with None for missing values, however the library stores them;
- for categories: codes and categories in pandas, or texts in polars, whose codes depend on other
  data in the process.

Only dtypes in the tables below can be read back.
"""

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import UnsupportedStateError
from letheon.state._nodes import MAX_DIMENSIONS, array_bytes, require_distinct_hashes, require_valid
from letheon.state._tags import Codec

_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
# Limits of the position of a generator in its buffer: NumPy uses it as an index without a check.
_POSITIONS = {("state", "pos"): 624, ("buffer_pos",): 4}
_RANDOM_STATE_KEYS = {"bit_generator", "state", "has_uint32", "uinteger", "buffer", "buffer_pos"}
# The seed does not matter: the state is set afterwards.
_SEED = np.random.SeedSequence(0)
_COMPRESSED = ("csr", "csc", "bsr")
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


def _generator_state(value: Any) -> dict[str, Any]:
    is_legacy = isinstance(value, np.random.RandomState)
    state = value.get_state(legacy=False) if is_legacy else value.bit_generator.state
    if state["bit_generator"] not in _BIT_GENERATORS:
        raise UnsupportedStateError(
            f"a random generator of type {state['bit_generator']} cannot be saved; use one of "
            f"{', '.join(sorted(_BIT_GENERATORS))}"
        )
    return state  # type: ignore[no-any-return]


def _bit_generator(state: dict[str, Any]) -> Any:
    """Check a state, and return a new bit generator of its type; the caller sets the state."""
    require_valid(state.get("bit_generator") in _BIT_GENERATORS, "random generator")
    for path, limit in _POSITIONS.items():
        position: Any = state
        for key in path:
            position = position.get(key) if isinstance(position, dict) else None
        is_inside = type(position) is int and 0 <= position <= limit
        require_valid(position is None or is_inside, "position")
    _check_parts(state)
    return getattr(np.random, state["bit_generator"])(_SEED)


def _check_parts(state: Any) -> None:
    """Check that a generator state has only numbers, texts and small arrays of integers."""
    for value in state.values():
        if isinstance(value, dict):
            _check_parts(value)
        elif isinstance(value, np.ndarray):
            require_valid(value.dtype.kind in "iu" and value.nbytes <= 1 << 13, "random generator")
        else:
            require_valid(type(value) in {int, float, str}, "random generator")


def _generator_from(_: type, state: Any) -> Any:
    generator = _bit_generator(state)
    require_valid(set(state) == set(generator.state), "random generator")
    generator.state = state
    return np.random.Generator(generator)


def _random_state_from(_: type, state: Any) -> Any:
    value = np.random.RandomState(_bit_generator(state))
    require_valid(set(state) - {"has_gauss", "gauss"} <= _RANDOM_STATE_KEYS, "random generator")
    value.set_state(state)
    return value


def _sparse_plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"shape": tuple(int(n) for n in value.shape)}
    if value.format in _COMPRESSED:
        plain |= {"data": value.data, "indices": value.indices, "indptr": value.indptr}
    elif value.format == "dia":
        plain |= {"data": value.data, "offsets": value.offsets}
    else:
        entries = value.tocoo()
        plain |= {"data": entries.data, "coords": tuple(entries.coords)}
    return plain


def _sparse_cost(cls: type, plain: Any) -> int:
    """Check the shape of a sparse matrix, and return the memory to build it, in bytes."""
    shape = plain["shape"]
    require_valid(type(shape) is tuple and 0 < len(shape) <= MAX_DIMENSIONS, "sparse shape")
    require_valid(all(type(n) is int and 0 <= n < 2**63 for n in shape), "sparse shape")
    n_rows: int = shape[0]
    kind = cls.__name__[:3]
    n_stored: int = plain["data"].size
    # Every row of a lil_matrix is two lists, plus an index during construction; every entry of a
    # dok_matrix is an item of a dict, with two ints and a tuple for its position.
    each = {"lil": (240, 160), "dok": (16, 400)}.get(kind, (0, 0))
    return 2048 + 2 * array_bytes(plain) + each[0] * n_rows + each[1] * n_stored


def _sparse_from(cls: Any, plain: Any) -> Any:
    """Build a sparse matrix; scipy checks that all indices are inside the shape."""
    import scipy.sparse

    shape, data = plain["shape"], plain["data"]
    kind = cls.__name__[:3]
    if kind in _COMPRESSED:
        indices, indptr = plain["indices"], plain["indptr"]
        for part in (indices, indptr):
            require_valid(part.dtype in (np.int32, np.int64), "sparse index")
        value = cls((data, indices, indptr), shape=shape)
        value.check_format(full_check=True)
        # scipy skips these checks if the last pointer is 0.
        require_valid(indptr[0] == 0 and np.all(indptr[1:] >= indptr[:-1]), "sparse pointer")
        require_valid(indptr[-1] <= len(indices), "sparse pointer")
        # scipy narrows the indices, but compiled code of scikit-learn may require their width.
        value.indices, value.indptr = indices, indptr
        return value
    if kind == "dia":
        return cls((data, plain["offsets"]), shape=shape)
    coo = scipy.sparse.coo_array if cls.__name__.endswith("array") else scipy.sparse.coo_matrix
    for part, limit in zip(plain["coords"], shape, strict=True):
        inside = part.size == 0 or (part.min() >= 0 and part.max() < limit)
        require_valid(part.dtype.kind == "i" and bool(inside), "sparse index")
    entries: Any = coo((data, plain["coords"]), shape=shape)
    entries.coords = tuple(plain["coords"])
    return entries if kind == "coo" else entries.asformat(kind)


def _partial_plain(value: Any) -> dict[str, Any]:
    if vars(value):
        raise UnsupportedStateError(
            "a functools.partial with extra attributes cannot be saved; remove the attributes"
        )
    return {"func": value.func, "args": value.args, "keywords": value.keywords}


def _partial_from(_: type, plain: Any) -> Any:
    require_valid(type(plain["args"]) is tuple and type(plain["keywords"]) is dict, "partial")
    return functools.partial(plain["func"], *plain["args"], **plain["keywords"])


def _path_from(_: type, plain: Any) -> Path:
    require_valid(type(plain) is str, "path")
    return Path(plain)


def _make_dtype_error(dtype: Any) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"a column of dtype {dtype} has no canonical bytes; convert it to numbers, texts, "
        "categories or dates"
    )


def _pandas_column(series: Any) -> Plain:
    """Convert a pandas series to plain values."""
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
    raise _make_dtype_error(dtype)


def _pandas_series(plain: Plain) -> Any:
    """Convert plain values to a pandas series."""
    import pandas as pd

    dtype, values = plain["dtype"], plain["values"]
    require_valid(isinstance(values, np.ndarray) and values.ndim == 1, "frame: a column")
    if dtype == "category":
        labels = _pandas_series(plain["categories"])
        require_distinct_hashes(labels.to_numpy(dtype=object))
        categories = pd.Index(labels)
        codes = pd.Categorical.from_codes(values, categories=categories, ordered=plain["ordered"])
        return pd.Series(codes)
    if dtype in {"str", "string"}:
        missing = pd.NA if dtype == "string" else np.nan
        require_valid(_all_texts(values), "frame: texts")
        return pd.Series(values, dtype=pd.StringDtype(na_value=missing))
    if "mask" in plain:
        require_valid(_MASKED.fullmatch(dtype), "frame: a dtype")
        series = pd.Series(values).astype(dtype)
        series[_mask_of(plain)] = pd.NA
        return series
    if _ZONED.fullmatch(dtype):
        zone = dtype.partition(", ")[2].rstrip("]")
        return pd.Series(values).dt.tz_localize("UTC").dt.tz_convert(zone)
    require_valid(dtype == str(values.dtype), "frame: a dtype")
    return pd.Series(values, dtype=values.dtype)  # pandas would make texts of objects


def _all_texts(values: NDArray[Any]) -> bool:
    return values.dtype == object and all(v is None or type(v) is str for v in values)


def _mask_of(plain: Plain) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = plain["mask"]
    require_valid(mask.dtype == np.bool_ and mask.shape == plain["values"].shape, "frame: a mask")
    return mask


def _polars_column(series: Any) -> Plain:
    """Convert a polars series to plain values."""
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
        raise _make_dtype_error(dtype)
    zone = getattr(dtype, "time_zone", None)
    return f"{kind}({dtype.time_unit}{f', {zone}' if zone else ''})"


def _object_array(values: list[Any]) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _polars_series(plain: Plain) -> Any:
    """Convert plain values to a polars series."""
    import polars as pl

    dtype, values = plain["dtype"], plain["values"]
    require_valid(isinstance(values, np.ndarray) and values.ndim == 1, "frame: a column")
    if dtype in {"String", "Categorical", "Enum"}:
        require_valid(_all_texts(values), "frame: texts")
        texts = pl.Series(values.tolist(), dtype=pl.String)
        if dtype == "String":
            return texts
        categorical = dtype == "Categorical"
        return texts.cast(pl.Categorical if categorical else pl.Enum(plain["categories"]))
    series = pl.Series(values).cast(_polars_dtype(dtype))
    mask = _mask_of(plain)
    return series.set(pl.Series(mask), None) if mask.any() else series


def _polars_dtype(name: str) -> Any:
    import polars as pl

    match = _TEMPORAL.fullmatch(name)
    if match is None:
        require_valid(name in _PLAIN_POLARS, f"frame: the dtype {name!r}")
        return getattr(pl, name)
    kind: Any = getattr(pl, match[1] or name)
    if match[1] == "Datetime":
        return kind(match[2], match[3])
    return kind(match[2]) if match[1] else kind


def _frame_plain(frame: Any) -> Plain:
    """Convert a data frame to plain values."""
    if _is_polars(type(frame)):
        columns = [_polars_column(column) for column in frame.get_columns()]
        return {"names": frame.columns, "columns": columns, "n_rows": frame.height}
    if frame.columns.nlevels > 1:
        raise UnsupportedStateError(
            "a frame with several levels of column names cannot be saved; use one level"
        )
    columns = [_pandas_column(frame.iloc[:, i]) for i in range(frame.shape[1])]
    return {"names": list(frame.columns), "columns": columns, "n_rows": len(frame)}


def _frame_from(cls: Any, plain: Plain) -> Any:
    is_polars, names, n_rows = _is_polars(cls), plain["names"], plain["n_rows"]
    columns = [(_polars_series if is_polars else _pandas_series)(c) for c in plain["columns"]]
    require_valid(all(len(column) == n_rows for column in columns), "frame: lengths of columns")
    require_valid(len(columns) == len(names), "frame: number of columns")
    if is_polars:
        return cls([column.alias(name) for name, column in zip(names, columns, strict=True)])
    frame = cls(dict(enumerate(columns)), index=range(n_rows))
    frame.columns = names
    return frame


def _series_plain(series: Any) -> Plain:
    to_plain = _polars_column if _is_polars(type(series)) else _pandas_column
    return {"name": series.name, "column": to_plain(series)}


def _series_from(cls: type, plain: Plain) -> Any:
    if _is_polars(cls):
        return _polars_series(plain["column"]).alias(plain["name"])
    return _pandas_series(plain["column"]).rename(plain["name"])


def _is_polars(cls: type) -> bool:
    return cls.__module__.startswith("polars")


def _frame_cost(_: type, plain: Plain) -> int:
    n_rows: int = plain["n_rows"]
    require_valid(type(n_rows) is int and 0 <= n_rows < 2**62, "frame: number of rows")
    return 8 * n_rows + sum(_column_cost(column) for column in plain["columns"])


def _column_cost(plain: Plain) -> int:
    """Return the memory in bytes for building a column: a copy of its values, and its texts."""
    total: int = _COLUMN_BYTES
    while True:
        values = plain["values"]
        require_valid(isinstance(values, np.ndarray), "frame: a column")
        total += 2 * values.nbytes
        if values.dtype == object:
            total += sum(len(value) for value in values.ravel() if type(value) is str)
        categories = plain.get("categories")
        if not isinstance(categories, dict):
            return int(total) + _TEXT_BYTES * len(categories or ())
        total += _COLUMN_BYTES + _TEXT_BYTES * len(categories["values"])
        plain = categories


def _frame_codec(name: str) -> Codec:
    """Return the codec of a frame or series class, which has its public name in files."""
    public = f"{name.partition('.')[0]}.{name.rpartition('.')[2]}"
    if public.endswith("Series"):
        cost = lambda _, plain: _column_cost(plain["column"])  # noqa: E731
        return Codec(_series_plain, _series_from, public, cost)
    return Codec(_frame_plain, _frame_from, public, _frame_cost)


# Public names, and names by the modules that define the classes, which differ by version.
_FRAMES = (
    "pandas.DataFrame pandas.core.frame.DataFrame pandas.Series pandas.core.series.Series "
    "polars.DataFrame polars.dataframe.frame.DataFrame polars.Series polars.series.series.Series"
)
_PATH = Codec(str, _path_from, name="pathlib.Path")
_GENERATOR = Codec(_generator_state, _generator_from, cost=lambda *_: 1 << 13)
_SPARSE = Codec(_sparse_plain, _sparse_from, cost=_sparse_cost)
CODECS: dict[str, Codec] = {
    # One name for all kinds of path: a file saved on one system is read on another.
    **{f"pathlib.{kind}Path": _PATH for kind in ("", "Posix", "Windows")},
    "numpy.random._generator.Generator": _GENERATOR,
    "numpy.random.mtrand.RandomState": _GENERATOR._replace(decode=_random_state_from),
    "functools.partial": Codec(_partial_plain, _partial_from),
    **{
        f"scipy.sparse._{kind}.{kind}_{form}": _SPARSE
        for kind in ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
        for form in ("matrix", "array")
    },
    **{name: _frame_codec(name) for name in _FRAMES.split()},
}
